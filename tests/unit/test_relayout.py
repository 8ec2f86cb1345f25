"""Files in another layout: every name, place, value and refusal as section 6.5 of qwen4exp.md and its sisters have it.

The head here is block 4, of embeddings of 32 in 4 streams; the trunk's only attention is block 3, with a ratio of 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from edited_contents import planned

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import Contents, TensorInfo, Value, array, boolean, string, u32
from nextn.gguf_schema.edit import Edit, unchanged
from nextn.gguf_schema.errors import InputError, NextnError, UsageError, VerdictError
from nextn.gguf_schema.layouts import layout_of
from nextn.gguf_schema.relayout import relayout
from nextn.gguf_schema.types import TENSOR_TYPES, ValueType

COMBINED, TRUNK, MTP, SHARED = Role
RATIOS = "qwen4exp.attention.compress_ratios"
UNSLOTH = "qwen4exp.nextn_shared_target_tensors"
BLOCK = ("blk.4.attn_q 32 32", "blk.4.hc_attn_norm 128")
NORMS = ("blk.4.nextn.enorm 32", "blk.4.nextn.hnorm 128")
EH_PROJ = "blk.4.nextn.eh_proj 64 32 Q8_0"
MIXER = ("blk.4.nextn.hc_head_norm 128", "blk.4.nextn.hc_head_down 128 8", "blk.4.nextn.hc_head_up 8 128")


def tensor(line: str) -> TensorInfo:
    """A tensor from `name ne… TYPE`; without a type it is F32."""
    name, *rest = line.split()
    type_ = TENSOR_TYPES[rest.pop() if rest[-1] in TENSOR_TYPES else "F32"]
    ne = tuple(map(int, rest))
    return TensorInfo(name if name.endswith((".scale", "d2t")) else f"{name}.weight", ne, type_, type_.tensor_bytes(ne))


def ratios(*values: int) -> Value:
    return array(ValueType.INT32, values)


def head(*lines: str, keys: Mapping[str, Value] | None = None, last: int = 4) -> Contents:
    """A file of a head with these tensors."""
    held = {
        "general.architecture": string("qwen4exp"),
        "qwen4exp.block_count": u32(5),
        "qwen4exp.embedding_length": u32(32),
        RATIOS: ratios(0, 0, 0, 4, last),
        "qwen4exp.nextn_predict_layers": u32(1),
        "qwen4exp.hyper_connection.count": u32(4),
        **(keys or {}),
    }
    tensors = [tensor(line) for line in lines]
    return Contents(held, {tensor.name: tensor for tensor in tensors}, "head.gguf")


def upstream(*lines: str, keys: Mapping[str, Value] | None = None, last: int = 4) -> Contents:
    return head(*BLOCK, NORMS[0], EH_PROJ, NORMS[1], *MIXER, *lines, keys=keys, last=last)


def shown(file: Contents) -> list[str]:
    """The tensors as lines."""
    return [
        " ".join((t.name.removesuffix(".weight"), *map(str, t.ne), *([] if t.type.name == "F32" else [t.type.name])))
        for t in file
    ]


def moved(file: Contents, to: str) -> Contents:
    return relayout(file, to).contents(file.name)


def refusal(file: Contents, to: str, code: str = "not-expressible") -> NextnError:
    with pytest.raises(NextnError) as caught:
        relayout(file, to)
    assert caught.value.code == code
    return caught.value


# Layout, its letter, the last ratio, and the tensors that upstream's become, in order.
FORKS: list[tuple[str, str, int, list[str]]] = [
    ("pull-request", "A", 0, shown(upstream())),
    ("rocmfpx", "B", 0, [*BLOCK, NORMS[0], EH_PROJ, NORMS[1],
                         "output_hc_norm 128", "output_hc_down 128 8", "output_hc_up 8 128"]),
    ("split-fc", "C", 0, [*BLOCK, NORMS[0], "blk.4.nextn.fc_embd 32 32 Q8_0", "blk.4.nextn.fc_hidden 32 32 Q8_0",
                          NORMS[1], "blk.4.nextn.hc_norm 128", "blk.4.nextn.hc_down 128 8", "blk.4.nextn.hc_up 8 128"]),
    ("split-proj", "D", 4, [*BLOCK, NORMS[0], "blk.4.nextn.embed_proj 32 32 Q8_0",
                            "blk.4.nextn.hidden_proj 32 32 Q8_0", NORMS[1], *MIXER]),
    ("ik-llama", "E1", 4, [*BLOCK, NORMS[0], EH_PROJ, NORMS[1], "blk.4.nextn.shared_head_norm 128",
                           "output_hc_down 128 8", "output_hc_up 8 128"]),
    ("ik-llama-split", "E2", 4, [*BLOCK, "mtp.pre_norm_embd 32", "mtp.fc_embd 32 32 Q8_0", "mtp.fc_hidden 32 32 Q8_0",
                                 "mtp.pre_norm_hidden 128", "mtp.mixer_norm 128", "mtp.mixer_down 128 8",
                                 "mtp.mixer_up 8 128"]),
    ("hf", "HF", 4, [*BLOCK, "mtp.pre_fc_norm_embedding 32", "mtp.fc_embedding 32 32 Q8_0", "mtp.fc_hidden 32 32 Q8_0",
                     "mtp.pre_fc_norm_hidden 128", "mtp.hyper_connection_mixer.hc_norm 128",
                     "mtp.hyper_connection_mixer.input_mix_weight_down 128 8",
                     "mtp.hyper_connection_mixer.input_mix_weight_up 8 128"]),
    ("matrix-gammas", "matrix-gammas", 4, [*BLOCK, NORMS[0], EH_PROJ, "blk.4.nextn.hnorm 32 4",
                                           "blk.4.nextn.hc_head_norm 32 4", *MIXER[1:]]),
]  # fmt: skip
BY_ID = {layout: (last, lines) for layout, _, last, lines in FORKS}


@pytest.mark.parametrize(("layout", "letter", "last", "lines"), FORKS)
def test_every_fork_of_qwen4exp(layout: str, letter: str, last: int, lines: list[str]) -> None:
    there = relayout(upstream(), letter)
    assert shown(there.contents("there")) == lines
    assert there.keys == {**upstream().keys, RATIOS: ratios(0, 0, 0, 4, last)}
    assert layout_of(there.contents("there")).id == layout
    assert there.changes[0].startswith("was in layout upstream (llama.cpp b11549): ")
    assert there.changes[1].startswith(f"is in layout {layout} (")
    back = relayout(there.contents("there"), "upstream")
    assert (shown(back.contents("back")), back.keys) == (shown(upstream()), upstream().keys)
    assert back.changes[0].startswith(f"was in layout {layout} (")
    assert relayout(there.contents("there"), layout) == unchanged(there.contents("there"))


@pytest.mark.parametrize("to", BY_ID)
@pytest.mark.parametrize("layout", BY_ID)
def test_every_pair_of_forks(layout: str, to: str) -> None:
    (last, lines), (other_last, other_lines) = BY_ID[layout], BY_ID[to]
    there = relayout(head(*lines, last=last), to)
    assert sorted(shown(there.contents("there"))) == sorted(other_lines)
    assert there.keys[RATIOS] == ratios(0, 0, 0, 4, other_last)
    if "32 32 Q8_0" in " ".join(lines) and "32 32 Q8_0" in " ".join(other_lines):
        assert all(each.is_copy for each in there.tensors), "parts are renamed, not joined and divided again"


def test_what_a_matrix_is_made_of() -> None:
    (first, second) = [each for each in relayout(upstream(), "C").tensors if not each.is_copy]
    assert (first.sources, first.part, first.parts) == (("blk.4.nextn.eh_proj.weight",), 0, 2), "the embedding's half"
    assert (second.sources, second.part, second.parts) == (("blk.4.nextn.eh_proj.weight",), 1, 2)
    assert first.info.nbytes == second.info.nbytes == 32 * 34
    hidden_first = ["mtp.fc_hidden 32 32", "blk.4.attn_q 32 32", "mtp.fc_embd 32 32"]
    joined = relayout(head(*hidden_first), "upstream").tensors
    parts = ("mtp.fc_embd.weight", "mtp.fc_hidden.weight")
    assert [each.sources for each in joined] == [parts, ("blk.4.attn_q.weight",)], (
        "embedding first, at the first's place"
    )
    assert joined[0].info.ne == (64, 32)
    beside = relayout(head(*hidden_first), "hf").contents("there")
    assert shown(beside) == ["mtp.fc_embedding 32 32", "mtp.fc_hidden 32 32", "blk.4.attn_q 32 32"]


def test_changes_are_told() -> None:
    assert relayout(upstream(last=0), "upstream").changes == (
        "was in layout pull-request (pull requests 27836 and 28243 of llama.cpp, Unsloth: a dense head): "
        "attention.compress_ratios ends with 0 and has 4 before",
        "is in layout upstream (llama.cpp b11549)",
        f"{RATIOS}: entry 4, the head's: 0 → 4",
    )
    assert relayout(upstream(), "E1").changes[2:] == (
        "blk.4.nextn.hc_head_norm.weight → blk.4.nextn.shared_head_norm.weight",
        "blk.4.nextn.hc_head_down.weight → output_hc_down.weight",
        "blk.4.nextn.hc_head_up.weight → output_hc_up.weight",
    )
    halves = "blk.4.nextn.embed_proj.weight + blk.4.nextn.hidden_proj.weight"
    changes = relayout(head(*BY_ID["hf"][1]), "D").changes
    assert changes[2] == f"mtp.fc_embedding.weight + mtp.fc_hidden.weight → {halves}"


def test_ratios_of_halo_box() -> None:
    """The fork writes an entry for each block of the trunk, and none for the head."""
    short = head(*BY_ID["rocmfpx"][1], keys={RATIOS: ratios(0, 0, 0, 4)})
    edit = relayout(short, "upstream")
    assert edit.keys[RATIOS] == ratios(0, 0, 0, 4, 4)
    assert f"{RATIOS}: entry 4, the head's: missing → 4" in edit.changes
    assert moved(short, "C").keys[RATIOS] == ratios(0, 0, 0, 4, 0)
    assert relayout(short, "B").changes == ()


@pytest.mark.parametrize("to", [layout for layout in BY_ID if layout != "pull-request"])
def test_a_dense_model_stays_dense(to: str) -> None:
    """Zeros everywhere are zeros in every layout, be they meant or not."""
    dense = upstream(keys={RATIOS: ratios(0, 0, 0, 0, 0)})
    assert layout_of(dense).ambiguous
    assert moved(dense, to).keys == dense.keys
    assert moved(moved(dense, to), "upstream") == dense
    for same in ("upstream", "pull-request"):
        assert relayout(dense, same) == unchanged(dense)


def test_ratios_that_are_not_one() -> None:
    for values in ([0, 0, 2, 4, 0], [0, 0, 0, 0, 4], [0, 0, 4], [0, 0, 0, 4, 4, 4]):
        error = refusal(upstream(keys={RATIOS: ratios(*values)}), "C")
        assert (error.subject, error.remedy) == (RATIOS, "nextn repair FILE -o OUT.gguf"), values
    kept = moved(upstream(keys={RATIOS: ratios(0, 0, 0, 0, 4)}), "D")
    assert kept.keys[RATIOS] == ratios(0, 0, 0, 0, 4), "what the head says is not lost"
    assert refusal(upstream(keys={RATIOS: array(ValueType.STRING, "abcde")}), "D").subject == RATIOS


def test_what_says_that_a_sidecar_is_shared() -> None:
    """Early files of Unsloth have a key of their own; whose sidecar it is, is kept."""
    ours = upstream(keys={"nextn.shared": boolean(True), "nextn.target.name": string("Tiny")})
    theirs = moved(ours, "A")
    assert [*theirs.keys][-2:] == [UNSLOTH, "nextn.target.name"]
    assert moved(theirs, "upstream") == ours
    assert "nextn.shared" in moved(theirs, "C").keys
    twice = upstream(keys={"nextn.shared": boolean(True), UNSLOTH: boolean(True)}, last=0)
    edit = relayout(twice, "upstream")
    assert UNSLOTH not in edit.keys
    assert edit.dropped == ((UNSLOTH, "says what nextn.shared says"),)
    twice = upstream(keys={"nextn.shared": boolean(True), UNSLOTH: boolean(False)}, last=0)
    assert refusal(twice, "upstream").subject == UNSLOTH


def test_gammas_as_matrices_in_any_layout() -> None:
    matrices = moved(upstream(), "matrix-gammas")
    assert relayout(matrices, "upstream").changes[2:] == (
        "blk.4.nextn.hnorm.weight: [32, 4] → [128]", "blk.4.nextn.hc_head_norm.weight: [32, 4] → [128]"
    )  # fmt: skip
    old = replace(matrices, keys=upstream(last=0).keys)
    assert layout_of(old).id == "pull-request"
    assert moved(old, "A") == upstream(last=0), "older builds take vectors alone"
    assert moved(old, "matrix-gammas") == matrices
    lines = [line.replace("128", "32 4") if "_norm" in line else line for line in BY_ID["split-fc"][1]]
    lines = [line.replace("nextn.hnorm 128", "nextn.hnorm 32 4") for line in lines]
    both = moved(head(*lines, last=0), "D")
    assert shown(both) == [
        line.replace("128", "32 4") if "hc_attn" in line else line for line in BY_ID["split-proj"][1]
    ]


def test_the_head_of_a_file_with_a_trunk() -> None:
    trunk = ("blk.3.attn_q 32 32", "output_hc_norm 128", "output_hc_down 128 8", "output_hc_up 8 128")
    file = upstream(*trunk)
    for layout in ("A", "C", "D", "E2", "HF", "matrix-gammas"):
        assert sorted(shown(moved(file, layout))) == sorted([*BY_ID[layout_of(moved(file, layout)).id][1], *trunk])
    for layout, name in (("B", "output_hc_norm.weight"), ("E1", "output_hc_down.weight")):
        error = refusal(file, layout)
        assert error.subject == name
        assert "the trunk's" in error.message
        assert ";" not in error.message, "once is enough"
        assert error.exit_status == 1
    # What a head of ik_llama.cpp holds there is not in the file: it may not be said to be.
    mixed = head(*BLOCK, *NORMS, EH_PROJ, "blk.4.nextn.shared_head_norm 128", *trunk)
    assert refusal(mixed, "upstream").subject == "output_hc_down.weight"
    error = refusal(head(*BLOCK, *NORMS, EH_PROJ, *trunk), "upstream", "ambiguous-layout")
    assert "upstream or rocmfpx or ik-llama" in error.message
    assert error.subject == "head.gguf"
    # A file of heads may hold it too, and llama.cpp reads it.
    assert refusal(upstream(*trunk[1:]), "B").message.startswith("becomes output_hc_norm.weight in layout rocmfpx")


def test_a_trunk_is_the_same_everywhere() -> None:
    file = planned("qwen4exp", TRUNK)
    for layout in ("upstream", *BY_ID):
        assert relayout(file, layout) == unchanged(file)
    assert relayout(planned("step35", TRUNK), "stepfun-fork").changes


@pytest.mark.parametrize("family", ["qwen4exp", "glm5-next", "step35"])
@pytest.mark.parametrize("role", Role)
def test_what_is_there_already(family: str, role: Role) -> None:
    file = planned(family, role)
    assert relayout(file, "upstream") == unchanged(file)


def test_what_no_other_layout_has() -> None:
    draft = head(*BLOCK, *NORMS, EH_PROJ, "blk.4.nextn.shared_head_norm 32")
    error = refusal(draft, "upstream")
    assert "no mixer of the head" in error.message
    assert refusal(upstream(), "unsloth-draft").remedy
    assert relayout(draft, "unsloth-draft").changes == ()
    short_vocabulary = head(*BY_ID["split-fc"][1], "d2t 8 I32", last=0)
    assert refusal(short_vocabulary, "E2").subject == "d2t"
    own_embedding = upstream("blk.4.nextn.embed_tokens 32 64", last=0)
    assert refusal(own_embedding, "upstream").subject == "blk.4.nextn.embed_tokens.weight"
    raw = head(*BY_ID["hf"][1], "mtp.layers.0.self_attn.q_proj 32 32")
    assert refusal(raw, "upstream").subject == "mtp.layers.0.self_attn.q_proj.weight"
    assert refusal(upstream("blk.4.nextn.eh_proj.scale 1"), "D").subject == "blk.4.nextn.eh_proj.scale"
    assert refusal(upstream("blk.4.nextn.hc_head_up.scale 1"), "B").subject == "blk.4.nextn.hc_head_up.scale"
    assert shown(moved(upstream("blk.4.attn_q.scale 1"), "C"))[-1] == "blk.4.attn_q.scale 1"


def test_all_reasons_at_once() -> None:
    file = head(*BY_ID["split-fc"][1], "d2t 8 I32", "blk.4.nextn.fc_embd.scale 1", keys={RATIOS: ratios(0, 4)})
    error = refusal(file, "upstream")
    assert error.subject == "d2t"
    for reason in ("fc_embd.scale: has no name in layout upstream", f"{RATIOS}: has 2 entries"):
        assert reason in error.message


def test_parts_that_do_not_make_a_whole() -> None:
    lines = BY_ID["split-fc"][1]
    error = refusal(head(*(line for line in lines if "fc_hidden" not in line)), "upstream")
    assert error.subject == "blk.4.nextn.fc_hidden.weight"
    assert error.message == "is missing, the other half of blk.4.nextn.fc_embd.weight"
    unlike = head(*(line.replace("fc_hidden 32 32 Q8_0", "fc_hidden 32 32 F16") for line in lines))
    assert refusal(unlike, "upstream", "unlike-parts").exit_status == InputError.exit_status
    assert shown(moved(unlike, "E2"))[4] == "mtp.fc_hidden 32 32 F16", "nothing is joined on this way"
    large = replace(upstream(), tensors={t.name: t for t in map(tensor, ["blk.4.nextn.eh_proj 256 32 Q4_K", *MIXER])})
    assert refusal(large, "C", "indivisible").subject == "blk.4.nextn.eh_proj.weight"
    twice = head(*lines, EH_PROJ, last=0)
    assert "which is there too" in refusal(twice, "upstream").message
    assert "others" not in refusal(head(*lines, "mtp.fc_embd 32 32"), "upstream", "ambiguous-layout").message


def test_what_would_not_be_recognised() -> None:
    without = head(*BLOCK, *NORMS, *MIXER)
    assert "would be of layout upstream, not split-fc" in refusal(without, "C").message


def old_glm(role: Role = COMBINED, keys: Mapping[str, Value] | None = None) -> Contents:
    """A file of the old spelling, as section 8 of glm5-next.md describes it; keys without the architecture."""
    file = planned("glm5-next", role)
    held = {}
    for key, value in file.keys.items():
        if key not in ("glm5-next.attention.indexer.kpool_select_tail", "glm5-next.attention.indexer.types"):
            held[key.replace("glm5-next.", "glm5next.").replace("indexer.kpool", "indexer.block_size")] = value
        if key == "glm5-next.expert_feed_forward_length":
            held["glm5next.expert_shared_feed_forward_length"] = u32(int(str(value.value)))
    held["general.architecture"] = string("glm5next")
    return replace(file, keys=held | {f"glm5next.{key}": value for key, value in (keys or {}).items()})


@pytest.mark.parametrize("role", Role)
def test_the_old_spelling_of_glm(role: Role) -> None:
    file, old = planned("glm5-next", role), old_glm(role)
    there, back = relayout(file, "glm5next"), relayout(old, "upstream")
    assert [*there.keys.items()] == [*old.keys.items()]
    assert [*back.keys.items()] == [*file.keys.items()]
    assert there.tensors == back.tensors == unchanged(file).tensors, "names and data are the same"
    assert there.changes[2:4] == (
        "glm5-next.attention.indexer.kpool → glm5next.attention.indexer.block_size",
        "general.architecture, and what keys begin with: glm5-next → glm5next",
    )
    assert [key for key, _ in there.dropped] == [
        "glm5-next.attention.indexer.kpool_select_tail", "glm5-next.attention.indexer.types"
    ]  # fmt: skip
    assert [key for key, _ in back.dropped] == ["glm5next.expert_shared_feed_forward_length"]
    assert "glm5-next.attention.indexer.kpool_select_tail is added: True" in back.changes


def test_the_old_spelling_with_the_new_key() -> None:
    old = old_glm()
    pool = old.keys["glm5next.attention.indexer.block_size"]
    keys = {key.replace("block_size", "kpool"): value for key, value in old.keys.items()}
    edit = relayout(replace(old, keys=keys), "upstream")
    assert [*edit.keys.items()] == [*planned("glm5-next").keys.items()]
    assert "glm5next.attention.indexer.kpool → glm5-next.attention.indexer.kpool" in edit.changes
    both = relayout(replace(old, keys={**old.keys, "glm5next.attention.indexer.kpool": pool}), "upstream")
    assert both.keys["glm5-next.attention.indexer.kpool"] == pool
    assert both.dropped[-1][0] == "glm5next.attention.indexer.block_size"
    unlike = replace(old, keys={**old.keys, "glm5next.attention.indexer.kpool": u32(64)})
    assert refusal(unlike, "upstream").subject == "glm5next.attention.indexer.block_size"


def test_what_the_old_spelling_of_glm_keeps() -> None:
    """A fact that upstream ignores, and those that old files may have had before."""
    types = array(ValueType.BOOL, [False] * len(planned("glm5-next").keys["glm5-next.attention.indexer.types"].items))
    old = old_glm(keys={"attention.indexer.index_share_mtp": boolean(True), "attention.indexer.types": types})
    edit = relayout(old, "upstream")
    assert edit.keys["glm5-next.attention.indexer.index_share_mtp"] == boolean(True)
    assert edit.keys["glm5-next.attention.indexer.types"] == types
    assert refusal(edit.contents("new"), "glm5next").subject == "glm5-next.attention.indexer.types"


def test_what_the_old_spelling_of_glm_cannot_say() -> None:
    file = planned("glm5-next")
    tail = {"glm5-next.attention.indexer.kpool_select_tail": boolean(False)}
    error = refusal(replace(file, keys={**file.keys, **tail}), "glm5next")
    assert error.message == "is False, and readers of layout glm5next take True for granted"
    numbers = array(ValueType.UINT32, [1] * len(file.keys["glm5-next.attention.indexer.types"].items))
    same = replace(file, keys={**file.keys, "glm5-next.attention.indexer.types": numbers})
    assert relayout(same, "glm5next").keys == old_glm().keys, "loaders take numbers too"
    wider = old_glm(keys={"expert_shared_feed_forward_length": u32(4096)})
    assert refusal(wider, "upstream").subject == "glm5next.expert_shared_feed_forward_length"
    pool = old_glm(keys={"attention.indexer.block_size": u32(1024)})
    assert "indexer_compressor_ape.weight is [" in refusal(pool, "upstream").message
    unknown = {key: value for key, value in file.keys.items() if key != "glm5-next.expert_shared_count"}
    error = refusal(replace(file, keys=unknown), "glm5next")
    assert error.subject == "glm5next.expert_shared_feed_forward_length"
    assert error.remedy == "nextn repair FILE -o OUT.gguf"


def test_the_forks_of_step() -> None:
    file = planned("step35", MTP)
    assert file.keys["tokenizer.ggml.pre"] == string("deepseek-v3")
    edit = relayout(file, "stepfun-fork")
    assert edit.keys == {**file.keys, "tokenizer.ggml.pre": string("step35")}
    assert edit.changes[2:] == ("tokenizer.ggml.pre: deepseek-v3 → step35",)
    assert [*relayout(edit.contents("fork"), "upstream").keys.items()] == [*file.keys.items()]
    other = replace(file, keys={**file.keys, "tokenizer.ggml.pre": string("glm4")})
    assert refusal(other, "stepfun-fork").subject == "tokenizer.ggml.pre"
    key = "step35.attention.head_count"
    first = min(int(name.split(".")[1]) for name in file.tensors if ".nextn." in name)
    short = array(ValueType.INT32, file.keys[key].items[:first])
    for pre in ("deepseek-v3", "step35"):
        error = refusal(replace(file, keys={**file.keys, key: short, "tokenizer.ggml.pre": string(pre)}), "upstream")
        assert error.remedy == "nextn repair FILE -o OUT.gguf"
    assert refusal(file, "stepfun-arrays").code == "not-expressible"


def test_layouts_that_are_not_known() -> None:
    for family, to in (("qwen4exp", "nothing"), ("qwen4exp", "glm5next"), ("step35", "C"), ("glm5-next", "")):
        with pytest.raises(UsageError) as caught:
            relayout(planned(family), to)
        assert caught.value.code == "unknown-layout"
        assert family in caught.value.message
    assert caught.value.remedy == "one of upstream, glm5next"
    foreign = Contents({"general.architecture": string("llama")}, {})
    assert relayout(foreign, "upstream") == unchanged(foreign)
    with pytest.raises(UsageError, match="llama"):
        relayout(foreign, "A")
    with pytest.raises(VerdictError, match="hf"):
        relayout(head(*BY_ID["hf"][1], "blk.4.nextn.fc_embd 32 32"), "upstream")


def test_an_edit_that_changes_nothing_has_no_words() -> None:
    edit: Edit = relayout(upstream(), "upstream")
    assert (edit.changes, edit.dropped) == ((), ())


def test_case_c17_the_old_name_of_a_key_in_the_new_spelling() -> None:
    """A file whose architecture was rewritten by hand: nothing shows the old layout but this key."""
    file = planned("glm5-next")
    keys = {key.replace("indexer.kpool", "indexer.block_size"): v for key, v in file.keys.items() if "tail" not in key}
    tail = {key: value for key, value in file.keys.items() if "tail" in key}
    edit = relayout(replace(file, keys={**keys, **tail}), "upstream")
    assert edit.keys == file.keys
    assert edit.changes[2:] == (
        "glm5-next.attention.indexer.block_size → glm5-next.attention.indexer.kpool",
    )  # fmt: skip
    both = {**file.keys, "glm5-next.attention.indexer.block_size": file.keys["glm5-next.attention.indexer.kpool"]}
    assert relayout(replace(file, keys=both), "upstream").dropped[0][0] == "glm5-next.attention.indexer.block_size"
    unlike = {**both, "glm5-next.attention.indexer.block_size": u32(512)}
    assert refusal(replace(file, keys=unlike), "upstream").subject == "glm5-next.attention.indexer.block_size"


def test_a_mark_of_another_layout_where_nothing_else_tells_it() -> None:
    """Without compress ratios a file of the pull request's layout is like one of upstream's, but for the mark."""
    ours = upstream(keys={"nextn.shared": boolean(True)})
    ours = replace(ours, keys={key: value for key, value in ours.keys.items() if key != RATIOS})
    theirs = moved(ours, "A")
    assert UNSLOTH in theirs.keys
    assert moved(theirs, "upstream") == ours
