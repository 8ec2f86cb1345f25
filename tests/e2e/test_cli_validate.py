"""`nextn validate` and `nextn inspect` as commands: verdicts, exit statuses, JSON that scripts rely on, one screen."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command import STEP, run
from faults import edit
from verdicts import BLOCKS, EACH_FAMILY, EACH_ROLE, FINDING, KEYS, SCREEN, error, rules, verdict

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import u32
from nextn.validators.memory import KV_TYPES

Converted = Callable[[str], dict[Role, Path]]


def loads_nowhere(family: str, role: Role) -> set[str]:
    """The finding about a shared sidecar, which only the fork of one family loads."""
    return {"loads-nowhere"} if role is Role.MTP_SHARED and family != "qwen4exp" else set()


@EACH_FAMILY
@EACH_ROLE
def test_good_files(family: str, role: Role, converted: Converted) -> None:
    path = converted(family)[role]
    shown = verdict("validate", path, "--strict", status=0)
    assert shown.keys() >= KEYS
    assert {finding["rule"] for finding in shown["findings"]} == loads_nowhere(family, role)
    assert shown["ok"] is True
    assert shown["architecture"] == family
    assert shown["role"] == role
    assert shown["layout"] == "upstream"
    trunk, heads = BLOCKS[family]
    assert shown["trunk_blocks"] == (trunk if role.has_trunk else 0)
    assert shown["nextn_blocks"] == (heads if role.has_head else 0)
    declared = {"block_count": trunk + heads, "nextn_predict_layers": heads}
    assert shown["declared"] == (declared if role.has_head else {"block_count": trunk, "nextn_predict_layers": None})
    assert shown["flags"] == {"mtp_only": not role.has_trunk, "trunk_only": False}
    assert [(Path(file["path"]), file["bytes"]) for file in shown["files"]] == [(path, path.stat().st_size)]
    assert shown["estimate"]["weights"]["bytes"] < path.stat().st_size
    for row in shown["forecast"]:
        assert row.keys() >= {"runtime", "as", "outcome", "message"}


@EACH_FAMILY
@EACH_ROLE
def test_a_healthy_file_takes_one_screen(family: str, role: Role, converted: Converted) -> None:
    # `nextn validate` prints the same without the lines about memory.
    done = run("inspect", converted(family)[role])
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= SCREEN
    assert lines[-1] == "ok"
    assert f"{family}, {role}: " in done.stdout
    assert "\x1b" not in done.stdout, "no colours outside a terminal"


@EACH_FAMILY
@pytest.mark.parametrize("draft", [Role.MTP, Role.MTP_SHARED, Role.COMBINED])
def test_good_pairs(family: str, draft: Role, converted: Converted) -> None:
    files = converted(family)
    shown = verdict("validate", files[Role.TRUNK], "--draft", files[draft], "--strict", status=0)
    assert {finding["rule"] for finding in shown["findings"]} == loads_nowhere(family, draft)
    assert (shown["role"], shown["draft"]["role"]) == (Role.TRUNK, draft)
    borrowed = [item["name"] for item in shown["estimate"]["borrowed"]]
    assert borrowed == (["token_embd.weight", "output.weight"] if draft is Role.MTP_SHARED else [])


def test_a_pair_that_does_not_belong_together(converted: Converted, tmp_path: Path) -> None:
    step, glm = converted("step35"), converted("glm5-next")
    shown = verdict("validate", step[Role.TRUNK], "--draft", glm[Role.MTP], status=1)
    assert [(finding["of"], finding["rule"]) for finding in shown["findings"]] == [("pair", "pair-architecture")]
    # A fault of the draft is a fault of the pair, and told apart from the model's.
    lost = edit(step[Role.MTP], tmp_path / "lost.gguf", drop=r"blk\.6\.attn_q\.weight")
    shown = verdict("validate", step[Role.TRUNK], "--draft", lost, status=1)
    assert [(finding["of"], finding["rule"]) for finding in shown["findings"]] == [("draft", "tensor-missing")]
    assert "  draft: blk.6.attn_q.weight: " in run("validate", step[Role.TRUNK], "--draft", lost).stdout


def test_deep_reads_the_data(converted: Converted, tmp_path: Path) -> None:
    files = converted("step35")
    for path in (files[Role.COMBINED], files[Role.MTP_SHARED]):
        assert not rules(verdict("validate", path, "--deep", "--strict", status=0), "warning")
    edited = edit(
        files[Role.TRUNK], tmp_path / "nan.gguf", data={r"blk\.3\.attn_q\.weight": lambda x: x * float("nan")}
    )
    assert verdict("validate", edited, status=0)["ok"], "headers do not show it"
    shown = verdict("validate", edited, "--deep", status=1)
    assert {finding["subject"] for finding in shown["findings"]} == {"blk.3.attn_q.weight"}
    # The sidecar knows its target by the hash of the embeddings.
    pair = ("--draft", files[Role.MTP_SHARED], "--deep")
    assert "pair-target-hash" not in rules(verdict("validate", files[Role.TRUNK], *pair, status=0), "warning")
    other = edit(files[Role.TRUNK], tmp_path / "other.gguf", data={r"token_embd\.weight": lambda x: x + 1})
    # Of the same type, so that it cannot be that it was quantized otherwise.
    shown = verdict("validate", other, *pair, status=0)
    assert rules(shown, "warning") == {"pair-target-hash"}
    # The hash says nothing of a trunk in another type.
    other = edit(files[Role.TRUNK], tmp_path / "q8.gguf", retype={r"token_embd\.weight": "Q8_0"})
    shown = verdict("validate", other, *pair, status=0)
    assert (rules(shown, "warning"), "pair-target-hash" in rules(shown, "note")) == (set(), True)
    # Nor does one say anything of two files that both have the table: its bytes are compared.
    other = edit(files[Role.MTP], tmp_path / "own.gguf", data={r"token_embd\.weight": lambda x: x[::-1]})
    shown = verdict("validate", files[Role.TRUNK], "--draft", other, "--deep", status=0)
    assert rules(shown, "warning") == {"pair-embedding"}
    verdict("validate", files[Role.TRUNK], "--draft", files[Role.MTP], "--deep", "--strict", status=0)


def test_a_faulty_file_is_told_by_its_rule(converted: Converted, tmp_path: Path) -> None:
    good = converted("step35")[Role.COMBINED]
    lost = edit(good, tmp_path / "lost.gguf", drop=r"blk\.3\.attn_q\.weight")
    shown = verdict("validate", lost, status=1)
    assert shown["ok"] is False
    assert rules(shown) == {"tensor-missing"}
    (finding,) = [finding for finding in shown["findings"] if finding["severity"] == "error"]
    assert finding.keys() >= FINDING
    assert finding["subject"] == "blk.3.attn_q.weight"

    done = run("validate", lost)
    assert done.returncode == 1
    assert "1 error\n  blk.3.attn_q.weight: " in done.stdout
    assert done.stdout.endswith("not ok\n")
    assert run("inspect", lost).returncode == 1


def test_the_probe_that_is_fooled(converted: Converted, tmp_path: Path) -> None:
    lost = edit(converted("step35")[Role.COMBINED], tmp_path / "lost.gguf", drop=r"blk\.0\.attn_norm\.weight")
    shown = verdict("validate", lost, status=1)
    assert shown["role"] == "combined", "the tensors say so, whatever one probe says"
    assert shown["flags"] == {"mtp_only": True, "trunk_only": False}
    assert "trunk-probe-missing" in rules(shown)


def test_declared_heads_that_are_not_there(converted: Converted, tmp_path: Path) -> None:
    trunk = converted("glm5-next")[Role.TRUNK]
    keys = {"block_count": u32(7), "nextn_predict_layers": u32(1)}
    shown = verdict("validate", edit(trunk, tmp_path / "lie.gguf", keys=keys), status=1)
    assert (shown["role"], shown["nextn_blocks"]) == ("trunk", 0)
    assert shown["declared"] == {"block_count": 7, "nextn_predict_layers": 1}
    done = run("inspect", tmp_path / "lie.gguf")
    assert "trunk: 6 trunk blocks, 0 nextn blocks (block_count 7, nextn_predict_layers 1)" in done.stdout


def test_strict_counts_warnings(converted: Converted, tmp_path: Path) -> None:
    path = shutil.copy(converted("step35")[Role.TRUNK], tmp_path / "junk.gguf")
    with Path(path).open("ab") as file:
        file.write(b"\xff" * 1000)
    shown = verdict("validate", path, status=0)
    assert (rules(shown), rules(shown, "warning"), shown["ok"]) == (set(), {"trailing-bytes"}, True)
    shown = verdict("validate", path, "--strict", status=1)
    assert shown["ok"] is False


def test_role_is_asserted(converted: Converted) -> None:
    files = converted("qwen4exp")
    assert verdict("validate", files[Role.MTP], "--role", "mtp", status=0)["ok"]
    shown = verdict("validate", files[Role.MTP], "--role", "trunk", status=1)
    assert rules(shown) == {"role-not-asserted"}


def test_for_a_build(converted: Converted) -> None:
    files = converted("step35")
    shown = verdict("validate", files[Role.COMBINED], "--for", "llama.cpp@b11549", status=0)
    assert {row["runtime"] for row in shown["forecast"]} == {"llama.cpp@b11549"}
    # It wants token_embd.weight in every file.
    shown = verdict("validate", files[Role.MTP_SHARED], "--for", "llama.cpp@b11549", status=1)
    assert rules(shown) == {"forecast"}
    assert "token_embd.weight" in str(shown["findings"])
    assert verdict("validate", files[Role.MTP_SHARED], status=0)["ok"], "other runtimes take it"
    assert error("validate", files[Role.TRUNK], "--for", "nothing@b1", status=2)["code"] == "unknown-runtime"


def test_a_layout_of_a_fork(converted: Converted, tmp_path: Path) -> None:
    names = {
        rf"blk\.(\d+)\.nextn\.hc_head_{part}\.weight": f"output_hc_{part}.weight" for part in ("norm", "down", "up")
    }
    path = edit(converted("qwen4exp")[Role.MTP], tmp_path / "fork.gguf", rename=names)
    shown = verdict("validate", path, status=1)
    assert (shown["layout"], shown["role"]) == ("rocmfpx", "mtp")
    assert rules(shown) == {"layout"}
    (finding,) = [finding for finding in shown["findings"] if finding["rule"] == "layout"]
    assert finding["remedy"] == f"nextn relayout {path} -o OUT.gguf --to upstream"


def test_what_cannot_be_read(tmp_path: Path, converted: Converted) -> None:
    good = converted("step35")[Role.TRUNK].read_bytes()
    for name, data, code in (
        ("empty.gguf", b"", "truncated"),
        ("page.gguf", b"<html>" * 100, "not-gguf"),
        ("cut.gguf", good[:2000], "truncated"),
        ("big.gguf", good[:4] + good[4:8][::-1] + good[8:], "big-endian"),
    ):
        (tmp_path / name).write_bytes(data)
        assert error("validate", tmp_path / name, status=3)["code"] == code
        assert error("inspect", tmp_path / name, status=3)["code"] == code
    assert error("validate", tmp_path / "none.gguf", status=3)["subject"].endswith("none.gguf")
    assert error("inspect", tmp_path, status=3)["code"] == "no-config"
    # A header that can be read gives a verdict, whatever is behind it.
    (tmp_path / "half.gguf").write_bytes(good[:-1000])
    assert rules(verdict("validate", tmp_path / "half.gguf", status=1)) == {"truncated"}


def test_wrong_usage(converted: Converted) -> None:
    path = converted("step35")[Role.TRUNK]
    for arguments in (
        ("validate",),
        ("validate", path, "--role", "head"),
        ("inspect", path, "--kv-type", "f8"),
        ("inspect", path, "--context", "0"),
        ("inspect", STEP, "--draft", path),
    ):
        assert run(*arguments).returncode == 2, arguments
    for command in ("validate", "inspect"):
        helped = run(command, "--help")
        assert helped.returncode == 0
        assert f"nextn {command} Step" in helped.stdout
    assert all(kv_type in helped.stdout for kv_type in KV_TYPES)


def test_nothing_slow_is_imported(converted: Converted) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "nextn", "validate", str(converted("step35")[Role.COMBINED])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "nextn.validators.examine" in imported
    assert imported.isdisjoint({"torch", "numpy", "rich", "gguf", "ml_dtypes", "tokenizers", "huggingface_hub"})


def test_a_set_of_shards_is_given_by_any_of_them(tmp_path: Path) -> None:
    done = run("convert", STEP, "-o", tmp_path, "--split-max-tensors", 50)
    assert done.returncode == 0, done.stderr
    shards = sorted(tmp_path.glob("*.gguf"))
    assert len(shards) == 3
    shown = [verdict("validate", shard, status=0) for shard in shards]
    assert shown[0] == shown[1] == shown[2]
    assert [Path(file["path"]) for file in shown[0]["files"]] == shards
    assert shown[0]["tensors"] == 130
    assert " and 2 more\n" in run("inspect", shards[1]).stdout

    shards[2].unlink()
    lacking = verdict("validate", shards[1], status=1)
    assert rules(lacking) == {"missing-shard"}
    assert (lacking["role"], lacking["architecture"], lacking["estimate"]) == (None, "step35", None)
    assert lacking["declared"] == {"block_count": 8, "nextn_predict_layers": 3}
    assert {(row["outcome"], row["message"]) for row in lacking["forecast"]} == {
        ("refuses", f"failed to open GGUF file '{shards[2]}'")
    }
    assert run("inspect", shards[1]).stdout.endswith("not ok\n")
