"""Weights are what gguf-py decodes, read from the file where it lies."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from definitions import linear
from gguf import GGMLQuantizationType as Type
from gguf_bytes import header, key, tensor, text

from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.shards import GGUFFile, open_gguf, shard_name
from nextn.gguf_schema.types import TENSOR_TYPES
from nextn.runtime import weights as module
from nextn.runtime.weights import Weights

Bytes = npt.NDArray[np.uint8]
ARCHITECTURE = key("general.architecture", 8, text("toy"))


def decodable(type_: Type) -> bool:
    try:
        gguf.quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[type_][1]), np.uint8), type_)
    except NotImplementedError:
        return False
    return True


DECODABLE = [type_ for type_ in Type if decodable(type_)]
NOT_DECODABLE = [name for name in TENSOR_TYPES if name not in {type_.name for type_ in DECODABLE}]


def some_bytes(type_: Type, *shape: int) -> Bytes:
    """Packed rows: noise, but for F16 scales of at most 1, so that no value is NaN."""
    rows = gguf.quant_shape_to_byte_shape(shape, type_)
    noise = np.random.default_rng(int(type_)).integers(0, 256, rows, dtype=np.uint8)
    if type_ in (Type.F32, Type.BF16, Type.F16):
        values = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
        return gguf.quants.quantize(values, type_).view(np.uint8).reshape(rows)
    return noise & 0x3B


def written(path: Path, tensors: dict[str, tuple[Type, Bytes]]) -> GGUFFile:
    writer = gguf.GGUFWriter(path, "toy")
    for name, (type_, data) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return open_gguf(path)


def floats(*shape: int) -> Bytes:
    return some_bytes(Type.F32, *shape)


@pytest.mark.parametrize("type_", DECODABLE, ids=lambda type_: type_.name)
def test_every_type_that_gguf_py_decodes(tmp_path: Path, type_: Type) -> None:
    data = some_bytes(type_, 2, 6, 512)
    weights = Weights(written(tmp_path / "a.gguf", {"w": (type_, data)}))
    expected = gguf.quants.dequantize(data, type_)
    matrix = weights.matrix("w")
    assert matrix.shape == (2, 6, 512)
    assert np.array_equal(weights.vector("w").numpy(), expected, equal_nan=True)
    assert np.array_equal(torch.cat(list(matrix[1].blocks())).numpy(), expected[1], equal_nan=True)
    assert np.array_equal(matrix[0].gather([5, 0, 5]).numpy(), expected[0][[5, 0, 5]], equal_nan=True)


def test_types_of_the_runtime_are_among_them() -> None:
    assert {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q6_K", "MXFP4"} <= {type_.name for type_ in DECODABLE}


@pytest.mark.parametrize("name", NOT_DECODABLE)
def test_a_type_that_nobody_decodes_is_refused(tmp_path: Path, name: str) -> None:
    type_ = TENSOR_TYPES[name]
    raw = header([ARCHITECTURE], [tensor("w", (256, 2), type_.id)]) + bytes(2 * type_.row_bytes(256))
    (tmp_path / "a.gguf").write_bytes(raw)
    weights = Weights(open_gguf(tmp_path / "a.gguf"))
    with pytest.raises(InputError, match=rf"a\.gguf: tensor 'w' is {name}, which cannot be decoded"):
        weights.matrix("w")


def test_a_type_that_is_not_known_is_refused(tmp_path: Path) -> None:
    raw = header([ARCHITECTURE], [tensor("w", (32,), 99)]) + bytes(32)
    (tmp_path / "a.gguf").write_bytes(raw)
    weights = Weights(open_gguf(tmp_path / "a.gguf"))
    with pytest.raises(InputError, match="type 99"):
        weights.vector("w")


def test_float32_is_used_where_it_lies(tmp_path: Path) -> None:
    file = written(tmp_path / "a.gguf", {"v": (Type.F32, floats(8)), "m": (Type.F32, floats(3, 8))})
    weights = Weights(file)
    vector, (block,) = weights.vector("v"), weights.matrix("m").blocks()
    (again,) = weights.matrix("m").blocks()
    assert block.data_ptr() == again.data_ptr()
    places = [file.tensor_bytes(name)[1] for name in ("v", "m")]
    assert block.data_ptr() - vector.data_ptr() == places[1] - places[0]


def test_nothing_that_is_written_to_a_weight_reaches_the_file(tmp_path: Path) -> None:
    written(tmp_path / "a.gguf", {"v": (Type.F32, floats(8))})
    before = (tmp_path / "a.gguf").read_bytes()
    (tmp_path / "a.gguf").chmod(0o400)
    file = open_gguf(tmp_path / "a.gguf")
    weights = Weights(file)
    weights.vector("v").fill_(7)
    assert (tmp_path / "a.gguf").read_bytes() == before
    assert not Weights(file).vector("v").eq(7).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_are_of_the_type_that_is_computed_in(tmp_path: Path, dtype: torch.dtype) -> None:
    data = some_bytes(Type.BF16, 4, 32)
    weights = Weights(written(tmp_path / "a.gguf", {"w": (Type.BF16, data)}), dtype)
    expected = torch.from_numpy(gguf.quants.dequantize(data, Type.BF16)).to(dtype)
    for found in (weights.vector("w"), weights.matrix("w").gather(range(4)), *weights.matrix("w").blocks()):
        assert found.dtype == dtype
        assert torch.equal(found, expected)


@pytest.mark.parametrize("type_", [Type.F32, Type.F16, Type.Q8_0, Type.Q4_0], ids=lambda type_: type_.name)
def test_a_matrix_too_large_to_keep_decoded_goes_by_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: Type
) -> None:
    """Three rows of 64 values are a block here; of 10 rows the last block has one."""
    data = some_bytes(type_, 10, 64)
    file = written(tmp_path / "a.gguf", {"w": (type_, data), "e": (type_, np.stack((data, data[::-1])))})
    whole = gguf.quants.dequantize(data, type_)
    monkeypatch.setattr(module, "DECODED_BYTES", 10 * 64 * 4 - 1)
    monkeypatch.setattr(module, "BLOCK_BYTES", 3 * 64 * 4)
    weights = Weights(file)
    for matrix, expected in ((weights.matrix("w"), whole), (weights.matrix("e")[1], whole[::-1])):
        blocks, again = list(matrix.blocks()), list(matrix.blocks())
        assert [len(block) for block in blocks] == [3, 3, 3, 1]
        assert np.array_equal(torch.cat(blocks).numpy(), expected)
        assert all(torch.equal(a, b) for a, b in zip(blocks, again, strict=True))
        x = torch.randn(5, 64, dtype=torch.float64).float()
        torch.testing.assert_close(linear(x, matrix), x @ torch.from_numpy(expected.copy()).T, rtol=1e-4, atol=1e-4)


def test_experts_of_what_is_decoded_already_are_parts_of_it(tmp_path: Path) -> None:
    data = some_bytes(Type.Q8_0, 3, 4, 32)
    matrix = Weights(written(tmp_path / "a.gguf", {"w": (Type.Q8_0, data)})).matrix("w")
    parts = [next(iter(matrix[expert].blocks())) for expert in (0, 2, 0)]
    assert parts[0].data_ptr() == parts[2].data_ptr()
    assert np.array_equal(parts[1].numpy(), gguf.quants.dequantize(data, Type.Q8_0)[2])
    assert matrix[1].shape == (4, 32)


@pytest.mark.parametrize("row", [-1, 4])
def test_a_row_that_is_not_there_is_an_error(tmp_path: Path, row: int) -> None:
    matrix = Weights(written(tmp_path / "a.gguf", {"w": (Type.F32, floats(4, 8))})).matrix("w")
    with pytest.raises(IndexError):
        matrix.gather([0, row])


def test_weights_of_all_shards(tmp_path: Path) -> None:
    names = {"a": floats(4), "b": floats(2, 4) ^ 1, "c": floats(3)}
    for index, name in enumerate(names):
        writer = gguf.GGUFWriter(tmp_path / shard_name("m", index, 3), "toy")
        writer.add_uint16("split.no", index)
        writer.add_uint16("split.count", 3)
        writer.add_int32("split.tensors.count", 3)
        writer.add_tensor(name, names[name], raw_dtype=Type.F32)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    weights = Weights(open_gguf(tmp_path / shard_name("m", 1, 3)))
    for name, data in names.items():
        assert np.array_equal(weights.vector(name).numpy(), data.view(np.float32))


def test_a_missing_weight_is_an_error_unless_it_is_optional(tmp_path: Path) -> None:
    weights = Weights(written(tmp_path / "a.gguf", {"w": (Type.F32, floats(4))}))
    for get in (weights.matrix, weights.vector):
        with pytest.raises(InputError, match=r"a\.gguf: tensor 'x' is not there") as caught:
            get("x")
        assert caught.value.code == "missing-weight"
    assert weights.optional("x") is None
    assert weights.optional("w") is not None
    assert "x" not in weights
    assert weights.read == {"w"}


def test_only_embedding_and_output_are_borrowed(tmp_path: Path) -> None:
    lent = {"token_embd.weight": 1, "output.weight": 2, "blk.9.nextn.eh_proj.weight": 3, "w": 4}
    lender = Weights(written(tmp_path / "l.gguf", {name: (Type.F32, floats(n, 4)) for name, n in lent.items()}))
    own = {"w": (Type.F32, floats(9, 4)), "output.weight": (Type.F32, floats(8, 4))}
    weights = Weights(written(tmp_path / "a.gguf", own), lender=lender)
    assert weights.matrix("token_embd.weight").shape == (1, 4)
    assert weights.matrix("output.weight").shape == (8, 4)
    assert weights.matrix("w").shape == (9, 4)
    with pytest.raises(InputError, match=r"a\.gguf: tensor 'blk\.9"):
        weights.matrix("blk.9.nextn.eh_proj.weight")
    assert lender.read == {"token_embd.weight"}


def test_a_file_that_was_written_anew_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    """A mapping that is kept by the name of its file gave the old bytes for the new header."""
    path = tmp_path / "a.gguf"
    old = written(path, {"w": (Type.F32, floats(4))})
    assert Weights(old).vector("w").tolist() == floats(4).view(np.float32).tolist()
    other = written(tmp_path / "b.gguf", {"w": (Type.F32, floats(4) ^ 1)})
    (tmp_path / "b.gguf").replace(path)
    assert Weights(open_gguf(path)).vector("w").tolist() == (floats(4) ^ 1).view(np.float32).tolist()
    for stale in (old, other):
        with pytest.raises(InputError, match=r"written anew|cannot be mapped"):
            Weights(stale).vector("w")


SPARSE = """
    import resource, sys
    from pathlib import Path
    import torch
    from nextn.gguf_schema.shards import open_gguf
    from nextn.runtime.weights import Weights

    torch.set_num_threads(1)
    torch.ones(4, 4) @ torch.ones(4, 4)
    file = open_gguf(Path(sys.argv[1]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    matrix = Weights(file).matrix("token_embd.weight")
    rows = matrix.gather([0, 5, matrix.shape[0] - 1])
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, tuple(rows.shape))
"""


def sparse(path: Path, type_: str, rows: int) -> None:
    raw = header([ARCHITECTURE], [tensor("token_embd.weight", (4096, rows), TENSOR_TYPES[type_].id)])
    with path.open("wb") as file:
        file.write(raw)
        file.truncate(len(raw) + rows * TENSOR_TYPES[type_].row_bytes(4096))


@pytest.mark.parametrize("type_", ["F32", "Q4_0"])
def test_a_table_of_2_gib_stays_on_the_disk(tmp_path: Path, type_: str) -> None:
    rows = (2 << 30) // TENSOR_TYPES[type_].row_bytes(4096)
    sparse(tmp_path / "a.gguf", type_, rows)
    arguments = [sys.executable, "-c", textwrap.dedent(SPARSE), str(tmp_path / "a.gguf")]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    kilobytes, shape = done.stdout.split(maxsplit=1)
    assert shape.strip() == "(3, 4096)"
    assert int(kilobytes) < 100 << 10


def test_a_file_may_be_larger_than_memory(tmp_path: Path) -> None:
    """A mapping that could be written to was refused: the system counted it as memory."""
    sparse(tmp_path / "a.gguf", "F32", 1 << 26)
    weights = Weights(open_gguf(tmp_path / "a.gguf"))
    assert weights.matrix("token_embd.weight").gather([(1 << 26) - 1]).count_nonzero() == 0
