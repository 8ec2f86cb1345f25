"""Which tensors get another type, and what is said about it."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import pytest
from edited_contents import MTP, generic, planned, with_key, with_number, with_tensor, with_type, without, without_keys
from small_files import noise
from surgery import retyped, seen

from nextn.convert.surgery.retype import retype
from nextn.gguf_schema.container import encode_header, lay_out
from nextn.gguf_schema.contents import Contents, TensorInfo, string, u32
from nextn.gguf_schema.errors import InputError, NextnError, UsageError, VerdictError
from nextn.gguf_schema.relayout import relayout
from nextn.gguf_schema.types import BF16, F16, F32, Q8_0, TENSOR_TYPES, TensorType

UNKNOWN = TensorType(99, "type 99", 1, 0)
Q4_0, Q4_K = TENSOR_TYPES["Q4_0"], TENSOR_TYPES["Q4_K"]
# An architecture without tables: its matrices are 8 wide, and one is made wide enough for blocks.
PLAIN = with_tensor(generic("llama", (0,), (), block_count=1), "blk.0.ffn_up.weight", (64, 8))


def rule(pattern: str, type_: TensorType) -> tuple[tuple[re.Pattern[str], TensorType], ...]:
    return ((re.compile(pattern), type_),)


def types(contents: Contents, *arguments: object) -> dict[str, str]:
    """The tensors whose type changes, with the new one."""
    edit, _ = retype(contents, *arguments)  # type: ignore[arg-type]
    new = {t.info.name: t.info.type for t in edit.tensors}
    assert list(new) == list(contents.tensors)
    return {name: type_.name for name, type_ in new.items() if type_ != contents.tensors[name].type}


def refusal(contents: Contents, *arguments: object) -> NextnError:
    with pytest.raises(NextnError) as caught:
        retype(contents, *arguments)  # type: ignore[arg-type]
    return caught.value


def warnings(contents: Contents, *arguments: object) -> set[tuple[str, str]]:
    _, findings = retype(contents, *arguments)  # type: ignore[arg-type]
    return {(finding.rule, finding.subject) for finding in findings}


def test_matrices_change_and_vectors_do_not() -> None:
    assert types(PLAIN, BF16) == {n: "BF16" for n, t in PLAIN.tensors.items() if len(t.ne) > 1}


def test_the_file_type_follows_the_outtype_alone() -> None:
    contents = with_key(PLAIN, "general.file_type", u32(0))
    assert retype(contents, Q8_0)[0].keys["general.file_type"].value == 7
    assert retype(contents, None, rule("ffn_up", Q8_0))[0].keys["general.file_type"].value == 0


def test_rows_that_are_no_whole_blocks_fall_back() -> None:
    changed = types(PLAIN, Q8_0)
    assert changed["blk.0.ffn_up.weight"] == "Q8_0"
    assert changed["blk.0.ffn_down.weight"] == "F16"
    assert ("type-fallback", "token_embd.weight") in warnings(PLAIN, Q8_0)


def test_only_quantizing_again_loses() -> None:
    quantized = with_type(PLAIN, "blk.0.ffn_up.weight", Q8_0)
    assert ("requantized", "blk.0.ffn_up.weight") in warnings(quantized, Q4_0)
    assert not {rule for rule, _ in warnings(quantized, F32)}


def test_floors_go_by_names_whatever_keys_say() -> None:
    """A key that is missing, or an old spelling, once made all floors disappear."""
    for family, to in (("qwen4exp", None), ("glm5-next", "glm5next")):
        contents = planned(family, MTP)
        want = types(contents, Q4_0)
        assert {want[name] for name in want} > {"Q4_0"}
        assert types(without_keys(contents, f"{family}.context_length"), Q4_0) == want
        if to:
            assert types(relayout(contents, to).contents("old"), Q4_0) == want


def test_without_outtype_only_what_matches() -> None:
    assert types(PLAIN, None, rule(r"ffn_up", Q8_0)) == {"blk.0.ffn_up.weight": "Q8_0"}


def test_the_first_rule_counts() -> None:
    both = (*rule("ffn_up", F16), *rule("ffn", BF16))
    assert types(PLAIN, None, both) == {"blk.0.ffn_up.weight": "F16", "blk.0.ffn_down.weight": "BF16"}
    changed = types(PLAIN, Q8_0, both)
    assert (changed["blk.0.ffn_up.weight"], changed["token_embd.weight"]) == ("F16", "F16")


def test_floors_of_the_tables() -> None:
    """What suffers below eight bits stays there, and what is computed in F32 alone is left: as when converting."""
    wide = planned("qwen4exp")
    assert types(wide, Q4_0) == {
        name: tensor.type.name
        for name, tensor in planned("qwen4exp", outtype="q4_0").tensors.items()
        if tensor.type != F32
    }


def test_the_same_type_is_no_change() -> None:
    edit, findings = retype(planned("step35", outtype="q8_0"), Q8_0)
    assert (edit.changes, findings) == ((), [])
    assert edit.contents("x") == planned("step35", outtype="q8_0")


def test_quantized_tensors_may_be_quantized_again_with_a_warning() -> None:
    contents = with_type(PLAIN, "blk.0.ffn_up.weight", Q8_0)
    assert types(contents, None, rule("ffn_up", Q4_0)) == {"blk.0.ffn_up.weight": "Q4_0"}
    assert warnings(contents, None, rule("ffn_up", Q4_0)) == {("requantized", "blk.0.ffn_up.weight")}


def test_integers_are_indices() -> None:
    contents = with_type(PLAIN, "blk.0.ffn_up.weight", TENSOR_TYPES["I32"])
    assert "blk.0.ffn_up.weight" not in types(contents, Q8_0)


def test_what_cannot_be_decoded_stays() -> None:
    contents = with_type(PLAIN, "blk.0.ffn_up.weight", UNKNOWN)
    assert "blk.0.ffn_up.weight" not in types(contents, Q8_0)
    assert ("undecodable", "blk.0.ffn_up.weight") in warnings(contents, Q8_0)


def test_a_rule_for_what_cannot_be_decoded() -> None:
    error = refusal(with_type(PLAIN, "blk.0.ffn_up.weight", UNKNOWN), None, rule("ffn_up", Q8_0))
    assert isinstance(error, InputError)
    assert (error.code, error.subject) == ("undecodable", "blk.0.ffn_up.weight")
    assert error.message == "is type 99, which cannot be decoded here, and is to become Q8_0"


def test_a_rule_that_matches_nothing() -> None:
    for pattern in ("ffn_upp", "attn_norm"):
        error = refusal(PLAIN, None, rule(pattern, Q8_0))
        assert isinstance(error, UsageError)
        assert error.code == "unused-pattern"


def test_a_file_whose_keys_contradict_its_tensors() -> None:
    """Case C03: refused before the work, not by the loader after it."""
    contents = without(planned("step35"), "blk.5.", "blk.6.", "blk.7.")
    error = refusal(contents, Q8_0)
    assert isinstance(error, VerdictError)
    assert (error.code, error.remedy) == ("contradictory", "nextn repair FILE -o OUT")
    assert "block_count 8 and nextn_predict_layers 3" in error.message


def test_files_without_heads_need_no_block_count() -> None:
    assert types(without(PLAIN), BF16)
    contents = Contents(
        {"general.architecture": string("clip")}, {"mm.0.weight": TensorInfo("mm.0.weight", (64, 2), F32, 512)}
    )
    assert types(contents, Q8_0) == {"mm.0.weight": "Q8_0"}


def test_heads_of_every_architecture() -> None:
    """Case Q01: the last block, of a mixture of experts, is among those that change."""
    contents = generic("qwen35moe", (0, 1), (2,), block_count=3, nextn_predict_layers=1)
    contents = with_tensor(contents, "blk.2.ffn_down_exps.weight", (64, 8, 4))
    assert types(contents, Q8_0)["blk.2.ffn_down_exps.weight"] == "Q8_0"
    assert types(contents, BF16)["blk.2.nextn.eh_proj.weight"] == "BF16"


def test_a_draft_alone() -> None:
    changed = types(planned("step35", MTP), None, rule(r"^(token_embd|output)\.weight$", Q4_0))
    assert changed == {"token_embd.weight": "Q4_0", "output.weight": "Q4_0"}
    assert with_number(planned("step35", MTP), "block_count", 8) == planned("step35", MTP)


# --- data


def write(path: Path, tensors: dict[str, tuple[tuple[int, ...], TensorType, bytes]]) -> Path:
    infos, _ = lay_out(TensorInfo(name, ne, type_, len(data)) for name, (ne, type_, data) in tensors.items())
    body = b"".join(data + bytes(-len(data) % 32) for _, _, data in tensors.values())
    path.write_bytes(encode_header({"general.architecture": string("llama")}, infos) + body)
    return path


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q5_0", "IQ4_NL", "MXFP4"])
def test_values_are_those_that_the_library_decodes(kind: str, tmp_path: Path) -> None:
    type_ = TENSOR_TYPES[kind]
    raw = np.random.default_rng(1).integers(0, 60, (4, 512 // type_.block * type_.size), dtype=np.uint8)
    path = write(
        tmp_path / "a.gguf", {"m.weight": ((512, 4), type_, raw.tobytes()), "n.weight": ((8,), F32, bytes(32))}
    )
    values = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
    made = seen(retyped(path, tmp_path / "b.gguf", "f32")).tensors
    assert np.frombuffer(made["m.weight"][2], np.float32).reshape(4, 512).tolist() == values.tolist()
    assert made["n.weight"] == seen(path).tensors["n.weight"]


def test_others_are_copied_bit_by_bit(tmp_path: Path) -> None:
    """Payloads that decoding would change: NaN, and negative zero in blocks."""
    nan = np.array([np.nan, -0.0, np.inf, 1], "<f4").tobytes()
    values = noise(2, 64)
    path = write(
        tmp_path / "a.gguf",
        {
            "a.weight": ((4, 1), F32, nan),
            "m.weight": ((64, 2), F32, values.tobytes()),
            "q.weight": ((64, 1), Q8_0, b"\x00\x80" * 34),
            "o.weight": ((32, 1), UNKNOWN, b"opaque" * 16),
        },
    )
    made = tmp_path / "b.gguf"
    retyped(path, made, None, {"^m": "f16"})
    before, after = path.read_bytes(), made.read_bytes()
    assert values.astype("<f2").tobytes() in after
    for data in (nan, b"\x00\x80" * 34, b"opaque" * 16):
        assert before.count(data) == after.count(data) == 1
    assert values.tobytes() not in after


def test_a_value_that_becomes_infinite(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", {"m.weight": ((4, 1), F32, np.array([1e9, 0, 0, 0], "<f4").tobytes())})
    with pytest.raises(InputError) as caught:
        retyped(path, tmp_path / "b.gguf", "f16")
    assert (caught.value.code, caught.value.subject) == ("overflow", "m.weight")
    assert [file.name for file in tmp_path.iterdir()] == ["a.gguf"]
