"""`nextn inspect` as a command: memory by the options, and checkpoints that have not been converted yet."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from checkpoints import model
from command import LAST_SHARD, STEP, run
from families import FAMILIES
from verdicts import BLOCKS, EACH_FAMILY, KEYS, SCREEN, error, rules, verdict

from nextn.gguf_schema.architecture import Role

Converted = Callable[[str], dict[Role, Path]]


def test_memory_follows_the_options(converted: Converted) -> None:
    files = converted("step35")
    pair = (files[Role.TRUNK], "--draft", files[Role.MTP_SHARED])
    small, large = (
        verdict("inspect", *pair, "--context", context, "--ubatch", 64, "--kv-type", "q8_0", "--n-max", 5, status=0)
        for context in (1024, 4096)
    )
    for shown, context in ((small, 1024), (large, 4096)):
        settings = {key: shown["estimate"][key] for key in ("context", "ubatch", "kv_type", "n_max")}
        assert settings == {"context": context, "ubatch": 64, "kv_type": "q8_0", "n_max": 5}
    # Two full layers of two heads of 32 values, keys and values; a Q8_0 block of 32 takes 34 bytes.
    difference = large["estimate"]["state"]["bytes"] - small["estimate"]["state"]["bytes"]
    assert difference == (4096 - 1024) * 2 * 2 * 2 * 34
    text = run("inspect", *pair, "--context", 1024).stdout
    assert "memory for 1024 tokens, 512 at once, caches in f16, drafts of 3\n" in text
    assert "borrowed token_embd.weight" in text


@EACH_FAMILY
def test_a_checkpoint_shows_what_converting_gives(family: str) -> None:
    folder = FAMILIES[family].checkpoint
    shown = verdict("inspect", folder, status=0)
    assert shown.keys() >= KEYS
    trunk, heads = BLOCKS[family]
    assert (shown["role"], shown["trunk_blocks"], shown["nextn_blocks"]) == ("combined", trunk, heads)
    assert shown["checkpoint"] == {"path": str(folder), "heads": heads, "heads_claimed": heads}
    dry = json.loads(run("convert", folder, "-o", "out", "--emit", ",".join(Role), "--dry-run", "--json").stdout)
    sizes = [(output["role"], output["tensors"], output["bytes"]) for output in dry["outputs"]]
    assert [(output["role"], output["tensors"], output["bytes"]) for output in shown["outputs"]] == sizes
    assert shown["ok"] is True
    text = run("inspect", folder).stdout
    assert text.startswith(f"checkpoint {folder}: the tensors hold {heads} head")
    assert len(text.splitlines()) <= SCREEN


def test_a_checkpoint_that_claims_a_head_it_does_not_have(tmp_path: Path) -> None:
    changed = model("step35")
    changed.drop(r"\.layers\.[567]\.")
    folder = changed.write(tmp_path)
    shown = verdict("inspect", folder, status=0)
    assert (shown["role"], shown["nextn_blocks"]) == ("trunk", 0)
    assert shown["checkpoint"]["heads_claimed"] == 3
    assert {"head-count", "no-head"} <= rules(shown, "warning")
    assert "the tensors hold 0 heads, config.json says 3" in run("inspect", folder).stdout
    # A lost shard is another thing than a model without a head.
    copied = Path(shutil.copytree(STEP, tmp_path / "copy"))
    (copied / LAST_SHARD).unlink()
    assert error("inspect", copied, status=3)["code"] == "missing-tensors"
