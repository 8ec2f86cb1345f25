"""Layouts: the names and shapes under which heads circulate, and lossless maps between each and upstream's.

A layout is data: a signature that recognises it and what it writes differently from llama.cpp b11549. Sources:
qwen4exp.md section 6.5, glm5-next.md section 8, step35.md sections 2.7 and 6.6 of the specifications.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nextn.gguf_schema.contents import boolean, string
from nextn.gguf_schema.errors import UsageError
from nextn.gguf_schema.layout_signatures import (
    Facts,
    Implied,
    Naming,
    all_full,
    facts_of,
    fork_pretokenizer,
    last_ratio,
    matrix_gammas,
    narrow_shared_norm,
    shared_width,
    short_arrays,
    split_hidden,
    there,
    trunk_mixer,
    wide_shared_norm,
)
from nextn.gguf_schema.nextn_architectures import upstream_spelling
from nextn.gguf_schema.nextn_generic import SHARED

if TYPE_CHECKING:
    from nextn.gguf_schema.contents import Contents, TensorInfo, Value

UPSTREAM = "upstream"
BUILD = "llama.cpp b11549"
# Tensors outside blocks that a file with a trunk has of its own.
OF_TRUNK = "output_"


@dataclass(frozen=True)
class Layout:
    """The layout of a file: its id, what it is, why it was recognised; `others` may equally be meant."""

    id: str
    description: str
    evidence: str
    others: tuple[str, ...] = ()

    @property
    def ambiguous(self) -> bool:
        """Whether the file fits more than one layout."""
        return bool(self.others)

    @property
    def doubtful(self) -> bool:
        """Whether names may mean other tensors than they seem to; values say the same in each layout that fits."""
        return any((naming := naming_of(other)) and naming.renames for other in self.others)


B = "blk.{i}.nextn."
MIXER = ("norm", "down", "up")
EH_PROJ = f"{B}eh_proj.weight"


def _mixer(here: str) -> tuple[tuple[str, str], ...]:
    """The three tensors of the head's mixer under the names of a layout."""
    return tuple((f"{B}hc_head_{part}.weight", here.format(part=part, i="{i}")) for part in MIXER)


QWEN, GLM, STEP = "qwen4exp", "glm5-next", "step35"
# Forks of the pull requests run a dense head, and write 0 for it: qwen4exp.md 6.4 ("forks: trailing 0") and 6.5.
LAST = ("attention.compress_ratios",)

# In the order in which signatures are tried: the more particular ones first.
NAMINGS: tuple[Naming, ...] = (
    Naming(
        "ik-llama-split", QWEN, "ik_llama.cpp before it merged the projections", there("mtp.fc_embd.weight"), "E2",
        names=((f"{B}enorm.weight", "mtp.pre_norm_embd.weight"), (f"{B}hnorm.weight", "mtp.pre_norm_hidden.weight"),
               *_mixer("mtp.mixer_{part}.weight")),
        fused=((EH_PROJ, ("mtp.fc_embd.weight", "mtp.fc_hidden.weight")),),
    ),
    Naming(
        "hf", QWEN, "raw names of the Hugging Face checkpoint", there("mtp.fc_embedding.weight"), "HF",
        names=((f"{B}enorm.weight", "mtp.pre_fc_norm_embedding.weight"),
               (f"{B}hnorm.weight", "mtp.pre_fc_norm_hidden.weight"),
               (f"{B}hc_head_norm.weight", "mtp.hyper_connection_mixer.hc_norm.weight"),
               (f"{B}hc_head_down.weight", "mtp.hyper_connection_mixer.input_mix_weight_down.weight"),
               (f"{B}hc_head_up.weight", "mtp.hyper_connection_mixer.input_mix_weight_up.weight")),
        fused=((EH_PROJ, ("mtp.fc_embedding.weight", "mtp.fc_hidden.weight")),),
    ),
    Naming(
        "split-fc", QWEN, "forks of mihailescu2m and neurall, FR-Spec files", there(f"{B}fc_embd.weight"), "C",
        names=_mixer(B + "hc_{part}.weight"),
        fused=((EH_PROJ, (f"{B}fc_embd.weight", f"{B}fc_hidden.weight")),), last=LAST,
        # FR-Spec: an output matrix of fewer rows, and the token of each.
        own=("d2t", "d2t.weight"),
    ),
    Naming(
        "split-proj", QWEN, "JJJYmmm's fork of llama.cpp; the names of its projections are a guess", split_hidden, "D",
        fused=((EH_PROJ, (f"{B}embed_proj.weight", f"{B}hidden_proj.weight")),),
    ),
    Naming(
        "ik-llama", QWEN, "ik_llama.cpp", wide_shared_norm, "E1",
        names=((f"{B}hc_head_norm.weight", f"{B}shared_head_norm.weight"),
               (f"{B}hc_head_down.weight", "output_hc_down.weight"), (f"{B}hc_head_up.weight", "output_hc_up.weight")),
    ),
    Naming(
        "unsloth-draft", QWEN, "early drafts of Unsloth: a narrow norm and no mixer of the head", narrow_shared_norm,
        closed=("nextn.hc_head_norm.weight", "it has no mixer of the head, and no other layout does without",
                "make the head again from its checkpoint: nextn convert"),
    ),
    Naming(
        "rocmfpx", QWEN, "ROCmFPX, halo-box, Strix: the head's mixer under the trunk's names", trunk_mixer, "B",
        names=_mixer("output_hc_{part}.weight"), last=LAST,
    ),
    Naming(
        "pull-request", QWEN, "pull requests 27836 and 28243 of llama.cpp, Unsloth: a dense head", last_ratio, "A",
        last=LAST, marker=f"{QWEN}.nextn_shared_target_tensors", combines=True,
        own=(f"{B}embed_tokens.weight", f"{B}shared_head_head.weight"),
    ),
    Naming(
        "matrix-gammas", QWEN, "gammas of all streams as matrices, which llama.cpp b11549 takes too", matrix_gammas,
        matrices=(f"{B}hnorm.weight", f"{B}hc_head_norm.weight"), combines=True,
    ),
    Naming(
        "glm5next", GLM, "the spelling before llama.cpp merged the architecture",
        lambda facts: "general.architecture is glm5next" if facts.contents.architecture == "glm5next" else None,
        keys=(("attention.indexer.kpool", "attention.indexer.block_size"),), spelling="glm5next",
        extra=(Implied("expert_shared_feed_forward_length", shared_width, "expert_feed_forward_length"),),
        assumed=(Implied("attention.indexer.kpool_select_tail", lambda _: boolean(True), "attention.indexer.kpool"),
                 Implied("attention.indexer.types", all_full, "attention.indexer.kpool_select_tail")),
        shown=(("attention.indexer.block_size", "indexer_compressor_ape.weight", 1),),
    ),
    Naming(
        "stepfun-arrays", STEP, "StepFun's fork: arrays over the trunk alone in a file with heads", short_arrays,
        closed=("attention.head_count", "its arrays over blocks lack the heads' entries, which tensors prove in part",
                "nextn repair FILE -o OUT.gguf"),
    ),
    Naming(
        "stepfun-fork", STEP, "StepFun's fork of llama.cpp, with a pre-tokenizer of its own", fork_pretokenizer,
        values=(("tokenizer.ggml.pre", "deepseek-v3", "step35"),), combines=True,
    ),
)  # fmt: skip


def namings_of(contents: Contents, facts: Facts) -> list[tuple[Naming, str]]:
    """Every layout whose signature a file has, with the evidence; none for upstream's own."""
    known = layouts_for(upstream_spelling(contents.architecture))
    return [(naming, evidence) for naming in known if (evidence := naming.evidence(facts))]


def layout_of(contents: Contents) -> Layout:
    """The layout a file is in, by its names, shapes and keys; a file without anything special is in upstream's."""
    facts = facts_of(contents)
    found = namings_of(contents, facts)
    if not found:
        return _upstream(facts)
    (naming, evidence), *rest = found
    return Layout(naming.id, naming.description, evidence, tuple(other.id for other, _ in rest if not other.combines))


def _upstream(facts: Facts) -> Layout:
    if facts.head is None:
        return Layout(UPSTREAM, BUILD, "there is no head, and trunks are named alike everywhere")
    is_qwen = facts.contents.architecture == QWEN
    if is_qwen and facts.has_trunk and facts.has("output_hc_down.weight") and not facts.has(f"{B}hc_head_norm.weight"):
        evidence = "the head has no mixer, and the trunk's may have been overwritten with it"
        return Layout(UPSTREAM, BUILD, evidence, ("rocmfpx", "ik-llama"))
    if is_qwen and facts.ratios == (0, 0):
        return Layout(UPSTREAM, BUILD, "every compress ratio is 0: dense attention", ("pull-request",))
    return Layout(UPSTREAM, BUILD, "names and keys as llama.cpp writes them")


def naming_of(layout: str) -> Naming | None:
    """The layout of this id or letter; None for upstream's own."""
    return next((naming for naming in NAMINGS if layout in (naming.id, naming.letter)), None)


def upstream(architecture: str) -> Naming:
    """Upstream's own layout, as data: nothing differs."""
    return Naming(UPSTREAM, architecture, BUILD, there())


def layouts_for(architecture: str) -> list[Naming]:
    """The layouts of an architecture besides upstream's."""
    return [naming for naming in NAMINGS if naming.architecture == architecture]


def aliases(architecture: str) -> tuple[tuple[str, str], ...]:
    """Keys that some layout of an architecture has under another name: upstream's name, and that one."""
    return tuple(names for naming in layouts_for(architecture) for names in naming.keys)


def strange_keys(contents: Contents, target: Naming) -> list[str]:
    """The keys of a file whose names only other layouts have, though the file may be recognised as of the target."""
    markers = {SHARED, *(naming.marker for naming in layouts_for(target.architecture))} - {target.marker}
    old = [alias for ours, alias in aliases(target.architecture) if target.key(ours) != target.key(alias)]
    return [key for key in (*(target.key(alias) for alias in old), *markers) if key in contents.keys]


def layout_for(contents: Contents, layout: str) -> Naming:
    """The layout of this id or letter that a file may be written in; UsageError when its architecture has none."""
    architecture = upstream_spelling(contents.architecture)
    known = layouts_for(architecture)
    named = {name.lower(): each for each in known for name in (each.id, each.letter) if name}
    naming = upstream(architecture) if layout.lower() == UPSTREAM else named.get(layout.lower())
    if naming is None:
        names = (f"{each.id} ({each.letter})" if each.letter else each.id for each in known)
        message = f"no layout {layout!r} of {architecture or 'a file without an architecture'} is known"
        raise UsageError("unknown-layout", message, subject="--to", remedy=f"one of {', '.join((UPSTREAM, *names))}")
    return naming


def upstream_view(contents: Contents, layout: str) -> Contents:
    """What a file in `layout` would say in upstream's: names, joined projections and keys, but no data.

    What is not there is passed over, so that it is missing in the view too. Names of the trunk stay in a file with one.
    """
    naming = naming_of(layout)
    if naming is None:
        return contents
    facts = facts_of(contents)
    target = upstream(naming.architecture)
    tensors = dict(contents.tensors)
    for old, new in renaming(naming, target, facts).items():
        if old in tensors:
            tensors[new] = replace(tensors.pop(old), name=new)
    for names, (new,) in regrouping(naming, target, facts):
        if all(name in tensors for name in names):
            tensors[new] = _joined(new, [tensors.pop(name) for name in names])
    extra = {f"{naming.prefix}.{implied.key}" for implied in naming.extra}
    keys = rekeyed({key: value for key, value in contents.keys.items() if key not in extra}, naming, target)
    for key in (f"{target.prefix}.{name}" for name in naming.last if facts.ratios):
        keys[key] = replace(keys[key], value=(*keys[key].items[:-1], max(facts.ratios or ())))
    return replace(contents, tensors=tensors, keys=keys)


def _joined(name: str, parts: Sequence[TensorInfo]) -> TensorInfo:
    """Tensors side by side in each row, be they alike or not."""
    first = parts[0]
    ne = (sum(part.ne[0] for part in parts), *first.ne[1:])
    return replace(first, name=name, ne=ne, nbytes=sum(part.nbytes for part in parts))


def renaming(source: Naming, target: Naming, facts: Facts) -> dict[str, str]:
    """The names of one layout, and another's for the same tensors, where these differ; without parts of tensors."""
    here, there = dict(source.names), dict(target.names)
    pairs = ((here.get(name, name), there.get(name, name)) for name in here | there)
    names = {old.format(i=facts.head): new.format(i=facts.head) for old, new in pairs if old != new}
    return {old: new for old, new in names.items() if not (facts.has_trunk and old.startswith(OF_TRUNK))}


def regrouping(source: Naming, target: Naming, facts: Facts) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The tensors that make up the same matrix in one layout and in another, in the order of columns."""
    here, there = dict(source.fused), dict(target.fused)
    return [
        (_of_head(here.get(name, (name,)), facts), _of_head(there.get(name, (name,)), facts)) for name in here | there
    ]


def _of_head(names: tuple[str, ...], facts: Facts) -> tuple[str, ...]:
    return tuple(name.format(i=facts.head) for name in names)


def rekeyed(keys: Mapping[str, Value], source: Naming, target: Naming) -> dict[str, Value]:
    """The keys of a file under the names of another layout, in place; values are what they were."""
    here, old = {name: ours for ours, name in source.keys}, f"{source.prefix}."
    edited = {}
    for key, value in keys.items():
        name = key.removeprefix(old)
        edited[target.key(here.get(name, name)) if key.startswith(old) else key] = value
    if source.prefix != target.prefix:
        edited["general.architecture"] = string(target.prefix)
    return edited
