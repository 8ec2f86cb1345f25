"""`nextn relayout` as a command, on files as forks publish them; and real llama.cpp before and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from by_hand import EH_PROJ, FORKS, HEAD_ALONE, LETTERS, OLD_GLM, RATIOS, Hand, by_hand, last
from command import result, run
from families import FAMILIES
from verdicts import error, rules, verdict

from nextn.gguf_schema.architecture import Role
from nextn.runtime.engines import llama_cpp

Converted = Callable[[str], dict[Role, Path]]
COMBINED, TRUNK, MTP, SHARED = Role
EACH = pytest.mark.parametrize("layout", FORKS)


def relaid(source: Path, to: str, output: Path, *options: object) -> dict[str, Any]:
    return result("relayout", source, "-o", output, "--to", to, *options)


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


def refusal(model: Path, draft: Path | None = None) -> str:
    """What llama.cpp says to a file, or to a trunk with a draft, that it does not take."""
    said = llama_cpp.load(model, draft)
    assert said.status in ("error", "abort")
    return said.message


def drafts(family: str, model: Path, draft: Path | None = None, n_max: int = 3) -> None:
    """The golden tokens of the first prompts, and as many drafted and accepted ones."""
    chosen = FAMILIES[family].prompts[:2]
    configuration = f"{'trunk+mtp' if draft else 'combined'} n_max={n_max}"
    outcome = llama_cpp.run(model, [prompt["ids"] for prompt in chosen], draft=draft, n_max=n_max)
    assert outcome.status == "ok", outcome.message
    golden = FAMILIES[family].read("llama_cpp.json")["prompts"][: len(chosen)]
    counts = [each["draft"][configuration] for each in golden]
    assert [(list(each.tokens), each.n_drafted, each.n_accepted) for each in outcome.continuations] == [
        (each["tokens"], count["drafted"], count["accepted"]) for each, count in zip(golden, counts, strict=True)
    ]


def test_case_s01_a_projection_in_two_and_in_one(converted: Converted, tmp_path: Path) -> None:
    """A head that was published for one fork cannot be loaded by others, in both directions."""
    upstream, split, back = converted("qwen4exp")[MTP], tmp_path / "split.gguf", tmp_path / "sub" / "back.gguf"
    done = run("relayout", upstream, "-o", split, "--to", "C")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].endswith(f"  {split}")
    was, becomes, *changes = done.stderr.splitlines()
    assert was == "was in layout upstream (llama.cpp b11549): names and keys as llama.cpp writes them"
    assert becomes.startswith("is in layout split-fc (")
    assert "blk.8.nextn.eh_proj.weight → blk.8.nextn.fc_embd.weight + blk.8.nextn.fc_hidden.weight" in changes
    assert verdict("inspect", split, status=1)["layout"] == "split-fc"
    printed = relaid(split, "upstream", back, "--manifest", tmp_path / "m.json")
    assert printed.keys() >= {"outputs", "dropped", "warnings", "seconds", "bytes_read", "peak_rss_bytes", "changes"}
    (output,) = printed["outputs"]
    assert (output["path"], output["role"], output["tensors"]) == (str(back), "mtp", 34)
    assert len(output["sha256"]) == 64
    assert same(back, upstream)


@EACH
@pytest.mark.parametrize("role", [COMBINED, MTP, SHARED])
@pytest.mark.long
def test_there_and_back(layout: str, role: Role, converted: Converted, tmp_path: Path) -> None:
    upstream, there = converted("qwen4exp")[role], tmp_path / "there.gguf"
    if role is COMBINED and layout in HEAD_ALONE:
        assert error("relayout", upstream, "-o", there, "--to", layout, status=1)["code"] == "not-expressible"
        assert not there.exists()
        return
    relaid(upstream, LETTERS.get(layout, layout), there)
    shown = verdict("validate", there, status=0 if layout == "matrix-gammas" else 1)
    assert (shown["layout"], shown["role"]) == (layout, role)
    relaid(there, "upstream", tmp_path / "back.gguf")
    assert same(tmp_path / "back.gguf", upstream)
    verdict("validate", tmp_path / "back.gguf", "--strict", "--role", role, status=0)


def test_case_s02_the_head_s_mixer_under_the_trunk_s_names(converted: Converted, tmp_path: Path) -> None:
    """Of halo-box, whose ratios lack the head's entry besides."""
    files, head = converted("qwen4exp"), tmp_path / "head.gguf"
    by_hand(files[MTP], head, replace(FORKS["rocmfpx"], keys={RATIOS: lambda old: old[:-1]}))
    shown = verdict("inspect", head, status=1)
    assert (shown["layout"], shown["role"]) == ("rocmfpx", "mtp")
    changes = relaid(head, "upstream", tmp_path / "new.gguf")["changes"]
    assert changes[2:] == [
        "qwen4exp.attention.compress_ratios: entry 8, the head's: missing → 4",
        *(f"output_hc_{part}.weight → blk.8.nextn.hc_head_{part}.weight" for part in ("norm", "down", "up")),
    ]
    assert same(tmp_path / "new.gguf", files[MTP])
    verdict("validate", files[TRUNK], "--draft", tmp_path / "new.gguf", "--strict", status=0)


def test_case_s03_a_draft_without_a_mixer(converted: Converted, tmp_path: Path) -> None:
    """Nothing can be made of it, and that is said; what llama.cpp will say is foretold from the headers."""
    files, draft = converted("qwen4exp"), tmp_path / "draft.gguf"
    mixer = ("b.hc_head_down.weight", "b.hc_head_up.weight")
    norm = "b.hc_head_norm.weight"
    narrow = {norm: lambda rows: rows[:128]}
    by_hand(files[MTP], draft, Hand({norm: "b.shared_head_norm.weight"}, tensors=narrow, without=mixer))
    shown = verdict("validate", files[TRUNK], "--draft", draft, "--for", "llama.cpp@b11549", status=1)
    assert shown["draft"]["layout"] == "unsloth-draft"
    (row,) = (row for row in shown["forecast"] if row["as"] == "paired")
    assert row["outcome"] == "refuses"
    assert row["message"].endswith("tensor 'blk.8.nextn.hc_head_norm.weight' not found")
    failed = error("relayout", draft, "-o", tmp_path / "out.gguf", "--to", "upstream", status=1)
    assert "no mixer of the head" in failed["message"]
    assert "nextn convert" in failed["remedy"]
    assert list(tmp_path.iterdir()) == [draft]
    pytest.importorskip("xllamacpp")
    assert row["message"] in refusal(files[TRUNK], draft)


def test_case_s04_a_gamma_of_all_streams_as_a_matrix(converted: Converted, tmp_path: Path) -> None:
    files, matrix = converted("qwen4exp"), tmp_path / "matrix.gguf"
    relaid(files[MTP], "matrix-gammas", matrix)
    shape = {tensor.name: tensor.shape.tolist() for tensor in gguf.GGUFReader(matrix).tensors}
    assert shape["blk.8.nextn.hc_head_norm.weight"] == shape["blk.8.nextn.hnorm.weight"] == [128, 4]
    shown = verdict("validate", matrix, "--strict", status=0)
    assert rules(shown, "note") >= {"tensor-reshaped"}
    relaid(matrix, "upstream", tmp_path / "vectors.gguf")
    assert same(tmp_path / "vectors.gguf", files[MTP])
    off = by_hand(files[MTP], tmp_path / "off.gguf", Hand(tensors={"b.hc_head_norm.weight": lambda rows: rows[:-1]}))
    assert rules(verdict("validate", off, status=1)) == {"tensor-shape"}
    (warning,) = relaid(off, "upstream", tmp_path / "out.gguf")["warnings"]
    assert (warning["rule"], warning["subject"]) == ("tensor-shape", "blk.8.nextn.hc_head_norm.weight")


def test_what_is_there_already_is_copied(converted: Converted, tmp_path: Path) -> None:
    upstream, copy = converted("step35")[MTP], tmp_path / "copy.gguf"
    done = run("relayout", upstream, "-o", copy, "--to", "upstream")
    assert (done.returncode, done.stderr) == (0, f"{upstream}: says the same in layout upstream, and is copied\n")
    assert same(copy, upstream)
    assert "changes" not in relaid(upstream, "upstream", copy, "--overwrite")


def test_a_dry_run_writes_nothing(converted: Converted, tmp_path: Path) -> None:
    arguments = ("relayout", converted("qwen4exp")[MTP], "-o", tmp_path / "sub" / "x.gguf", "--to", "E2", "--dry-run")
    done = run(*arguments)
    assert (done.returncode, "blk.8.nextn.enorm.weight → mtp.pre_norm_embd.weight" in done.stderr) == (0, True)
    printed = result(*arguments)
    assert printed["dry_run"] is True
    made = {tensor["name"]: tensor["transform"] for tensor in printed["outputs"][0]["plan"]}
    assert made["mtp.fc_hidden.weight"] == "part 2 of 2 of each row"
    assert made["mtp.mixer_up.weight"] == "copy"
    assert list(tmp_path.iterdir()) == []


def test_provenance(converted: Converted, tmp_path: Path) -> None:
    upstream, there = converted("qwen4exp")[MTP], tmp_path / "there.gguf"
    relaid(upstream, "D", there, "--provenance")
    fields = {key: field.contents() for key, field in gguf.GGUFReader(there).fields.items()}
    assert fields["nextn.source.operation"] == "relayout"
    assert fields["nextn.source.0.file"] == upstream.name
    assert fields["nextn.source.0.bytes"] == upstream.stat().st_size


def test_rows_whose_blocks_the_cut_would_go_through(converted: Converted, tmp_path: Path) -> None:
    """A block of Q4_K has 256 values, as many as a row: it has no half, and is copied where none is wanted."""
    head = with_q4_k(converted("qwen4exp")[MTP], tmp_path / "q4_k.gguf")
    done = run("relayout", head, "-o", tmp_path / "out.gguf", "--to", "C")
    assert done.returncode == 3
    assert "blk.8.nextn.eh_proj.weight: rows of 256 cannot be cut into 2 parts of whole blocks of Q4_K" in done.stderr
    assert "retype" in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == [head]
    relaid(head, "E1", tmp_path / "e1.gguf")
    before, after = (
        {t.name: t.data.tobytes() for t in gguf.GGUFReader(path).tensors} for path in (head, tmp_path / "e1.gguf")
    )
    assert before["blk.8.nextn.eh_proj.weight"] == after["blk.8.nextn.eh_proj.weight"]
    relaid(tmp_path / "e1.gguf", "upstream", tmp_path / "back.gguf")
    assert same(tmp_path / "back.gguf", head)


def with_q4_k(source: Path, target: Path) -> Path:
    """The head with a projection of random blocks of 144 bytes, one a row."""
    blocks = np.random.default_rng(0).integers(0, 255, (128, 144), np.uint8)
    return by_hand(source, target, Hand(tensors={EH_PROJ: lambda _: blocks}, types={EH_PROJ: "Q4_K"}))


def test_halves_of_two_types(converted: Converted, tmp_path: Path) -> None:
    head = by_hand(converted("qwen4exp")[MTP], tmp_path / "split.gguf", FORKS["split-fc"])
    half = Hand(tensors={"b.fc_hidden.weight": lambda rows: rows.astype("<f2")}, types={"b.fc_hidden.weight": "F16"})
    mixed = by_hand(head, tmp_path / "mixed.gguf", half)
    done = run("relayout", mixed, "-o", tmp_path / "out.gguf", "--to", "upstream")
    assert done.returncode == 3
    assert "blk.8.nextn.fc_hidden.weight: is [128, 128] F16, blk.8.nextn.fc_embd.weight [128, 128] F32" in done.stderr
    assert not (tmp_path / "out.gguf").exists()


def test_a_head_of_the_pull_request_aborts_and_then_drafts(converted: Converted, tmp_path: Path) -> None:
    """Forks run a dense head and write 0 for it; llama.cpp aborts on such a file."""
    pytest.importorskip("xllamacpp")
    files = converted("qwen4exp")
    head = by_hand(files[MTP], tmp_path / "head.gguf", Hand(keys={RATIOS: last(0)}))
    assert "GGML_ASSERT(buffer) failed" in refusal(files[TRUNK], head)
    relaid(head, "upstream", tmp_path / "new.gguf")
    drafts("qwen4exp", files[TRUNK], tmp_path / "new.gguf")


def test_case_c16_a_spelling_that_llama_cpp_does_not_know(converted: Converted, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    files = converted("glm5-next")
    old = {role: by_hand(files[role], tmp_path / f"{role}.gguf", OLD_GLM) for role in (TRUNK, MTP)}
    assert "unknown model architecture: 'glm5next'" in refusal(old[TRUNK])
    for role, path in old.items():
        relaid(path, "upstream", tmp_path / f"new-{role}.gguf")
    drafts("glm5-next", tmp_path / "new-trunk.gguf", tmp_path / "new-mtp.gguf")


@EACH
@pytest.mark.long
def test_llama_cpp_drafts_with_what_forks_wrote(layout: str, converted: Converted, tmp_path: Path) -> None:
    """Refused before, if not a matter of values; at every draft length afterwards as the goldens, to the token."""
    pytest.importorskip("xllamacpp")
    files = converted("qwen4exp")
    head = by_hand(files[MTP], tmp_path / "head.gguf", FORKS[layout])
    if layout == "matrix-gammas":
        drafts("qwen4exp", files[TRUNK], head)
    else:
        assert refusal(files[TRUNK], head)
    relaid(head, "upstream", tmp_path / "mtp.gguf")
    for n_max in (1, 3, 5):
        drafts("qwen4exp", files[TRUNK], tmp_path / "mtp.gguf", n_max)
    if layout not in HEAD_ALONE:
        relaid(by_hand(files[COMBINED], tmp_path / "whole.gguf", FORKS[layout]), "upstream", tmp_path / "new.gguf")
        drafts("qwen4exp", tmp_path / "new.gguf")
