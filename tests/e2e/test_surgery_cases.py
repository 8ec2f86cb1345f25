"""Faults that people had with other tools on files with heads, on ours: the right answer, or a refusal that helps."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import surgery
from command import NEXTN, result, run
from edited_contents import generic, with_key, with_number, with_tensor, without
from surgery import carried_out, command, refused, seen, shown, write

from nextn.convert.splitting import Split
from nextn.convert.surgery.operations import plan_split
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.container import encode_header, lay_out
from nextn.gguf_schema.contents import Contents, TensorInfo, array, string, u32
from nextn.gguf_schema.types import BF16, F32, ValueType

COMBINED, TRUNK, MTP, SHARED = Role
Converted = Callable[[str], dict[Role, Path]]

# Two trunk blocks, one head; the same without the head; and so that the keys still tell of it.
WHOLE = generic("qwen35", (0, 1), (2,), block_count=3, nextn_predict_layers=1)
HEADLESS = generic("qwen35", (0, 1), (), block_count=2)
LYING = without(WHOLE, "blk.2.")


def three_shards(source: Path, folder: Path) -> list[Path]:
    done = carried_out(plan_split(source, [COMBINED], None, Split(max_tensors=50)), folder)
    assert len(done.outputs) == 3
    return [output.path for output in done.outputs]


def state(*paths: Path) -> list[tuple[int, str]]:
    return [(path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths]


# --- a head that is declared and not there


def test_case_c02_a_head_that_is_declared_and_not_there(tmp_path: Path) -> None:
    """Neither cut nor believed: both keys are named."""
    path = write(LYING, tmp_path / "fine-tune.gguf")
    told = refused("split", path, "-o", tmp_path / "out", "--emit", "trunk", status=1)
    assert told["code"] == "contradictory"
    assert "block_count 3" in told["message"]
    assert "nextn_predict_layers 1" in told["message"]
    assert "2 trunk blocks and 0 heads" in told["message"]
    assert not (tmp_path / "out").exists()


def test_case_c03_the_same_is_refused_before_it_is_quantized(tmp_path: Path) -> None:
    path = write(LYING, tmp_path / "fine-tune.gguf")
    told = refused("retype", path, "-o", tmp_path / "out.gguf", "--outtype", "q8_0", status=1)
    assert told["code"] == "contradictory"
    assert [each.name for each in tmp_path.iterdir()] == ["fine-tune.gguf"]


@pytest.mark.parametrize("blocks", [2, 32])
def test_case_c04_the_error_says_what_to_do(blocks: int, tmp_path: Path) -> None:
    contents = generic("qwen35", range(blocks), (), block_count=blocks + 1, nextn_predict_layers=1)
    told = refused("split", write(contents, tmp_path / "x.gguf"), "-o", tmp_path / "out", status=1)
    assert told["remedy"] == "nextn repair FILE -o OUT"


@pytest.mark.parametrize("fine_tune", [HEADLESS, LYING, with_number(HEADLESS, "nextn_predict_layers", 0)])
def test_case_c09_a_fine_tune_gets_the_head_of_its_base(fine_tune: object, tmp_path: Path) -> None:
    assert isinstance(fine_tune, type(WHOLE))
    base = with_key(WHOLE, "general.name", string("Base"))
    paths = write(fine_tune, tmp_path / "tuned.gguf", salt=b"tuned"), write(base, tmp_path / "base.gguf")
    printed = shown("join", *paths, "-o", tmp_path / "whole.gguf", "--provenance")
    assert any("called Base" in line for line in printed["changes"])
    made, tuned, head = (seen(path) for path in (tmp_path / "whole.gguf", *paths))
    assert {n: t for n, t in made.tensors.items() if not n.startswith("blk.2.")} == tuned.tensors
    assert all(made.tensors[name] == head.tensors[name] for name in head.tensors if name.startswith("blk.2."))
    assert (made.number("block_count"), made.number("nextn_predict_layers")) == (3, 1)
    assert [made.keys[f"nextn.source.{i}.file"][1] for i in (0, 1)] == ["tuned.gguf", "base.gguf"]


def test_case_c09_a_base_of_another_size_is_refused(tmp_path: Path) -> None:
    base = with_tensor(with_number(WHOLE, "embedding_length", 16), "blk.2.nextn.eh_proj.weight", (32, 16))
    paths = write(HEADLESS, tmp_path / "tuned.gguf"), write(base, tmp_path / "base.gguf")
    told = refused("join", *paths, "-o", tmp_path / "whole.gguf", status=1)
    assert told["code"] == "pair-refused"
    assert "hidden rows of 16 values, the trunk gives hidden rows of 8 values" in told["message"]


# --- sizes


@pytest.mark.long
def test_case_c32_a_tensor_of_5_gib(tmp_path: Path) -> None:
    """Sizes beyond 32 bits; and memory that does not grow with the tensor."""
    contents = replace(WHOLE, tensors={t.name: surgery.sized(t) for t in WHOLE})
    large = TensorInfo("blk.1.ffn_up_exps.weight", (1 << 20, 1280), F32, 5 << 30)
    names = [t for t in contents if not t.name.startswith("blk.2.")]
    infos, size = lay_out([*names, large, *(t for t in contents if t.name.startswith("blk.2."))])
    header = encode_header(contents.keys, infos)
    path = tmp_path / "large.gguf"
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)
        # Something at both ends of the tensor, and behind it.
        for place in (infos[len(names)].offset, infos[len(names)].offset + large.nbytes - 4, size - 64):
            file.seek(len(header) + place)
            file.write(b"here")
    start = time.monotonic()
    head = result("split", path, "-o", tmp_path / "head", "--emit", "mtp")
    assert time.monotonic() - start < 10
    done = result("split", path, "-o", tmp_path / "out", "--emit", "trunk")
    assert max(head["peak_rss_bytes"], done["peak_rss_bytes"]) < 200 << 20
    assert done["bytes_read"] > 5 << 30
    trunk = Path(done["outputs"][0]["path"])
    reader = gguf.GGUFReader(trunk)
    (tensor,) = (each for each in reader.tensors if each.name == large.name)
    data = tensor.data.reshape(-1)
    assert (tensor.n_bytes, data[:1].tobytes(), data[-1:].tobytes()) == (5 << 30, b"here", b"here")
    assert not np.any(data[1 : 1 << 20])
    joined = result("join", trunk, head["outputs"][0]["path"], "-o", tmp_path / "joined.gguf")
    assert joined["outputs"][0]["bytes"] == path.stat().st_size
    assert joined["peak_rss_bytes"] < 200 << 20
    assert subprocess.run(["/usr/bin/cmp", path, tmp_path / "joined.gguf"], check=False).returncode == 0


# --- cutting and joining


def test_case_s06_join_undoes_split(converted: Converted, tmp_path: Path) -> None:
    """In tensor order, key order and alignment: to the byte; also as shards."""
    whole = converted("qwen4exp")[COMBINED]
    parts = surgery.split(whole, tmp_path, TRUNK, MTP)
    assert surgery.joined(parts[TRUNK], parts[MTP], tmp_path / "j.gguf").read_bytes() == whole.read_bytes()
    pieces = three_shards(converted("step35")[COMBINED], tmp_path / "set")
    parts = surgery.split(pieces[0], tmp_path / "parts", TRUNK, MTP)
    (tmp_path / "again").mkdir()
    back = surgery.joined(parts[TRUNK], parts[MTP], tmp_path / "again" / "j.gguf")
    assert seen(back) == seen(pieces[0])
    # The last shard of the three is heads alone, and so no shard of the trunk.
    assert len(list((tmp_path / "again").iterdir())) == 2


def test_case_s07_a_shard_as_output(converted: Converted, tmp_path: Path) -> None:
    """`merge model-0000* out.gguf`: nothing but -o is ever written, and no shard of an input, named or not."""
    pieces = three_shards(converted("step35")[COMBINED], tmp_path / "set")
    before = state(*pieces)
    assert command("join", *pieces, "--overwrite")[0] == 2
    for piece in pieces:
        for given in (pieces[0], pieces[2]):
            output = ("retype", given, "--tensor-type", "token_embd=q8_0", "--overwrite", "-o")
            assert refused(*output, piece, status=2)["code"] == "output-is-input"
    assert state(*pieces) == before
    assert sorted((tmp_path / "set").iterdir()) == pieces


def test_case_s08_any_shard_is_the_whole_set(converted: Converted, tmp_path: Path) -> None:
    whole = converted("step35")[COMBINED]
    pieces = three_shards(whole, tmp_path / "set")
    made = []
    for index, piece in enumerate(pieces):
        parts = surgery.split(piece, tmp_path / str(index), MTP, SHARED)
        made.append([parts[role].read_bytes() for role in (MTP, SHARED)])
    one = surgery.split(whole, tmp_path / "one", MTP, SHARED)
    assert made == [[one[role].read_bytes() for role in (MTP, SHARED)]] * 3
    pieces[2].unlink()
    told = refused("split", pieces[1], "-o", tmp_path / "out", status=3)
    assert told["code"] == "missing-shard"
    assert pieces[2].name in told["subject"] + told["message"]
    assert not (tmp_path / "out").exists()


def test_case_s11_saving_over_the_file_that_is_read(converted: Converted, tmp_path: Path) -> None:
    path = Path(shutil.copy(converted("step35")[COMBINED], tmp_path / "x.gguf"))
    before = state(path)
    for options in ((), ("--overwrite",)):
        told = refused("retype", path, "-o", path, "--outtype", "f16", *options, status=2)
        assert told["code"] == "output-is-input"
    assert state(path) == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("seed", range(3))
def test_case_s12_killed_at_any_time(seed: int, tmp_path: Path) -> None:
    """A real kill: afterwards there is no output, or the whole one; and the same command makes it the same."""
    large = with_tensor(HEADLESS, "blk.1.ffn_gate.weight", (1024, 16 * 1024))
    path = write(large, tmp_path / "x.gguf")
    arguments = ["retype", str(path), "--outtype", "bf16", "--jobs", "1", "-o"]
    result(*arguments, tmp_path / "whole.gguf")
    before, expected = state(path), (tmp_path / "whole.gguf").read_bytes()
    output = tmp_path / "out.gguf"
    partial = output.with_name("out.gguf.partial")
    with subprocess.Popen([NEXTN, *arguments, output], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not partial.exists() and process.poll() is None:
            time.sleep(0.001)
        time.sleep(np.random.default_rng(seed).uniform(0, 0.1))
        process.kill()
    assert not output.exists() or output.read_bytes() == expected
    if not output.exists():
        result(*arguments, output)
    assert output.read_bytes() == expected
    assert state(path) == before
    assert not partial.exists()


def test_case_s14_a_trunk_that_old_runtimes_accept(tmp_path: Path) -> None:
    """A runtime that knows no heads takes block 2 for a recurrent one: in the trunk there is nothing of it left."""
    kinds = array(ValueType.BOOL, [True, False, False])
    whole = with_key(with_number(WHOLE, "full_attention_interval", 2), "attention.recurrent_layers", kinds)
    made = seen(surgery.split(write(whole, tmp_path / "x.gguf"), tmp_path / "out", TRUNK)[TRUNK])
    assert made.number("block_count") == 2
    assert made.number("attention.recurrent_layers") == [True, False]
    assert made.number("full_attention_interval") == 2
    assert not any("nextn" in name for name in (*made.keys, *made.tensors))
    assert {name.split(".")[1] for name in made.tensors if name.startswith("blk.")} == {"0", "1"}


def test_case_s16_a_trunk_alone_saves_what_the_head_takes(converted: Converted, tmp_path: Path) -> None:
    """Case S16: the difference of the files is the dropped tensors with their padding, and that of the headers."""
    whole = converted("glm5-next")[COMBINED]
    printed = shown("split", whole, "-o", tmp_path, "--emit", "trunk")
    (output,) = printed["outputs"]
    dropped = [each["name"] for each in printed["dropped"]]
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(whole).tensors}
    assert dropped == [name for name in tensors if name.startswith("blk.6.")]
    saved = sum(-(-int(tensors[name].n_bytes) // 32) * 32 for name in dropped)
    offsets = [gguf.GGUFReader(path).data_offset for path in (whole, Path(output["path"]))]
    assert whole.stat().st_size - output["bytes"] == saved + offsets[0] - offsets[1]
    told = sum(int(tensors[name].n_bytes) for name in dropped)
    assert any(f"{told:,} bytes of data less" in line for line in printed["changes"])


def test_case_q01_the_last_block_is_in_the_plan(tmp_path: Path) -> None:
    """`Bad layer 78 ... must be in [0, 78)`: of a mixture of experts too; the plan is there before the work."""
    contents = generic("qwen35moe", (0, 1), (2,), block_count=3, nextn_predict_layers=1, expert_count=4)
    for block in range(3):
        contents = with_tensor(contents, f"blk.{block}.ffn_down_exps.weight", (64, 8, 4), BF16)
    contents = with_key(contents, "qwen35moe.expert_used_count", u32(2))
    path = write(contents, tmp_path / "x.gguf")
    printed = shown("retype", path, "-o", tmp_path / "out.gguf", "--outtype", "q8_0", "--dry-run")
    types = {tensor["name"]: tensor["type"] for tensor in printed["outputs"][0]["plan"]}
    assert [types[f"blk.{block}.ffn_down_exps.weight"] for block in range(3)] == ["Q8_0"] * 3
    # Rows of 8 are no blocks of 32.
    assert types["blk.2.ffn_up.weight"] == "F16"
    assert [each.name for each in tmp_path.iterdir()] == ["x.gguf"]


def test_a_file_without_blocks_has_no_role(tmp_path: Path) -> None:
    """A projector, say: what is printed says so, and does not fail."""
    tensor = TensorInfo("m.weight", (64, 2), F32, 0)
    path = write(Contents({"general.architecture": string("clip")}, {tensor.name: tensor}), tmp_path / "a.gguf")
    for more in (("--dry-run",), ()):
        done = run("retype", path, "-o", tmp_path / "b.gguf", "--tensor-type", "m=bf16", *more)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("- ")
