"""Layouts: the names and shapes under which heads circulate, and lossless maps between each and upstream's.

A layout is data: a signature that recognises it and what it writes differently from llama.cpp b11549. Sources:
qwen4exp.md section 6.5, glm5-next.md section 8, step35.md sections 2.7 and 6.6 of the specifications.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nextn.gguf_schema.contents import array, string
from nextn.gguf_schema.layout_signatures import (
    Facts,
    facts_of,
    fork_pretokenizer,
    last_ratio,
    narrow_shared_norm,
    short_arrays,
    split_hidden,
    there,
    trunk_mixer,
    wide_shared_norm,
)

if TYPE_CHECKING:
    from nextn.gguf_schema.contents import Contents, TensorInfo, Value

UPSTREAM = "upstream"


@dataclass(frozen=True)
class Naming:
    """One layout of an architecture, as data.

    `evidence` says why a file is of it, or None. Maps are (upstream, here) pairs; names hold `{i}` for the head's
    block. `fused` maps an upstream tensor to the tensors here that it consists of, joined along the first dimension;
    `keys` maps keys, without the architecture; `extra_keys` are written here and follow from other keys. `last` names
    the arrays whose last entry is 0 here and the trunk's largest entry upstream. `spelling` is another
    `general.architecture`, which all keys begin with.
    """

    id: str
    architecture: str
    description: str
    evidence: Callable[[Facts], str | None]
    letter: str | None = None
    names: tuple[tuple[str, str], ...] = ()
    fused: tuple[tuple[str, tuple[str, ...]], ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    extra_keys: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    spelling: str | None = None

    @property
    def renames(self) -> bool:
        """Whether names differ from upstream's in a way that is known, and not only values."""
        return bool(self.names or self.fused or self.keys or self.spelling)


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


B = "blk.{i}.nextn."
MIXER = ("norm", "down", "up")
EH_PROJ = f"{B}eh_proj.weight"


def _mixer(here: str) -> tuple[tuple[str, str], ...]:
    """The three tensors of the head's mixer under the names of a layout."""
    return tuple((f"{B}hc_head_{part}.weight", here.format(part=part, i="{i}")) for part in MIXER)


QWEN, GLM, STEP = "qwen4exp", "glm5-next", "step35"

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
        fused=((EH_PROJ, (f"{B}fc_embd.weight", f"{B}fc_hidden.weight")),),
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
    ),
    Naming(
        "rocmfpx", QWEN, "ROCmFPX, halo-box, Strix: the head's mixer under the trunk's names", trunk_mixer, "B",
        names=_mixer("output_hc_{part}.weight"),
    ),
    Naming(
        "pull-request", QWEN, "pull requests 27836 and 28243 of llama.cpp, Unsloth: a dense head", last_ratio, "A",
        last=("attention.compress_ratios",),
    ),
    Naming(
        "glm5next", GLM, "the spelling before llama.cpp merged the architecture",
        lambda facts: "general.architecture is glm5next" if facts.contents.architecture == "glm5next" else None,
        keys=(("attention.indexer.kpool", "attention.indexer.block_size"),), spelling="glm5next",
        extra_keys=("expert_shared_feed_forward_length", "attention.indexer.index_share_mtp"),
    ),
    Naming("stepfun-arrays", STEP, "StepFun's fork: arrays over the trunk alone in a file with heads", short_arrays),
    Naming(
        "stepfun-fork", STEP, "StepFun's fork of llama.cpp, with a pre-tokenizer of its own", fork_pretokenizer,
    ),
)  # fmt: skip
SPELLINGS = {naming.spelling: naming.architecture for naming in NAMINGS if naming.spelling}


def layout_of(contents: Contents) -> Layout:
    """The layout a file is in, by its names, shapes and keys; a file without anything special is in upstream's."""
    facts = facts_of(contents)
    architecture = SPELLINGS.get(contents.architecture, contents.architecture)
    found = [
        (naming, evidence)
        for naming in NAMINGS
        if naming.architecture == architecture and (evidence := naming.evidence(facts))
    ]
    if not found:
        return _upstream(facts)
    (naming, evidence), *rest = found
    # A last ratio of 0 goes with any naming of the head's tensors.
    others = tuple(other.id for other, _ in rest if other.letter != "A")
    return Layout(naming.id, naming.description, evidence, others)


def _upstream(facts: Facts) -> Layout:
    description = "llama.cpp b11549"
    if facts.head is None:
        return Layout(UPSTREAM, description, "there is no head, and trunks are named alike everywhere")
    if facts.has_trunk and facts.has("output_hc_down.weight") and not facts.has(f"{B}hc_head_norm.weight"):
        evidence = "the head has no mixer, and the trunk's may have been overwritten with it"
        return Layout(UPSTREAM, description, evidence, ("rocmfpx", "ik-llama"))
    if facts.contents.architecture == QWEN and facts.ratios == (0, 0):
        return Layout(UPSTREAM, description, "every compress ratio is 0: dense attention", ("pull-request",))
    return Layout(UPSTREAM, description, "names and keys as llama.cpp writes them")


def naming_of(layout: str) -> Naming | None:
    """The layout of this id or letter; None for upstream's own."""
    return next((naming for naming in NAMINGS if layout in (naming.id, naming.letter)), None)


def upstream_view(contents: Contents, layout: str) -> Contents:
    """What a file in `layout` would say in upstream's: names, joined projections and keys, but no data.

    What is not there is passed over, so that it is missing in the view too. Names of the trunk stay in a file with one.
    """
    naming = naming_of(layout)
    if naming is None:
        return contents
    facts = facts_of(contents)
    tensors = dict(contents.tensors)
    for upstream, here in naming.names:
        old, new = here.format(i=facts.head), upstream.format(i=facts.head)
        if old in tensors and not (facts.has_trunk and old.startswith("output_")):
            tensors[new] = replace(tensors.pop(old), name=new)
    for upstream, parts in naming.fused:
        names = [part.format(i=facts.head) for part in parts]
        if all(name in tensors for name in names):
            new = upstream.format(i=facts.head)
            tensors[new] = _joined(new, [tensors.pop(name) for name in names])
    return replace(contents, tensors=tensors, keys=_upstream_keys(contents, naming))


def _joined(name: str, parts: Sequence[TensorInfo]) -> TensorInfo:
    """Tensors side by side in each row."""
    first = parts[0]
    ne = (sum(part.ne[0] for part in parts), *first.ne[1:])
    return replace(first, name=name, ne=ne, nbytes=sum(part.nbytes for part in parts))


def _upstream_keys(contents: Contents, naming: Naming) -> dict[str, Value]:
    """The keys under upstream's names and with its values."""
    old, new = f"{contents.architecture}.", f"{naming.architecture}."
    renamed = {here: upstream for upstream, here in naming.keys}
    keys: dict[str, Value] = {}
    for key, value in contents.keys.items():
        name = key.removeprefix(old)
        if not key.startswith(old):
            keys[key] = string(naming.architecture) if key == "general.architecture" else value
        elif name not in naming.extra_keys:
            keys[new + renamed.get(name, name)] = _last_entry(value) if name in naming.last else value
    return keys


def _last_entry(value: Value) -> Value:
    """An array that ends with its largest entry."""
    items = value.items
    if value.element is None or not items:
        return value
    return array(value.element, (*items[:-1], max(items)))
