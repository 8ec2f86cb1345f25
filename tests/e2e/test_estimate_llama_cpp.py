"""The estimate of caches and states against what the real library says that it allocates."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.shards import open_gguf
from nextn.gguf_schema.types import TENSOR_TYPES
from nextn.validators.estimate import estimate

pytest.importorskip("xllamacpp")

CONTEXT, UBATCH, N_MAX = 4000, 48, 2
LOAD = """
import json, os, sys
import xllamacpp as x
job = json.loads(sys.argv[1])
p = x.CommonParams()
draft = p.speculative.draft
p.model.path, p.n_parallel, p.n_ctx, p.n_ubatch = job["model"], 1, job["context"], job["ubatch"]
p.hostnames, p.port = ["127.0.0.1"], 0
p.warmup = p.fit_params = p.ui = False
p.verbosity = 5
p.n_gpu_layers = draft.n_gpu_layers = 0
p.cache_type_k = p.cache_type_v = draft.cache_type_k = draft.cache_type_v = type(p.cache_type_k)(job["type"])
p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
p.speculative.types = [x.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
draft.n_max, draft.mparams.path = job["n_max"], job["draft"]
server = x.Server(p)
os._exit(0)
"""
# What a cache says of itself: "size =   16.00 MiB ( 65536 cells,   2 layers, …"; one block says nothing when empty.
SAID = re.compile(r"llama_(kv_cache|memory_recurrent): size = +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers")


def allocated(**job: Any) -> list[tuple[str, float, int]]:
    """Kind of cache, MiB and rows, in the order of allocation, of those that are not empty."""
    job |= {"context": CONTEXT, "ubatch": UBATCH, "n_max": N_MAX}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, json.dumps(job)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = SAID.findall(done.stdout + done.stderr)
    return [(kind, float(mib), int(rows)) for kind, mib, rows, _ in said if float(mib)]


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("family", ["step35", "qwen4exp", "glm5-next"])
def test_caches_and_states(family: str, kv_type: str, converted: Callable[[str], dict[Role, Path]]) -> None:
    files = converted(family)
    trunk, head = files[Role.TRUNK], files[Role.MTP]
    said = allocated(model=str(trunk), draft=str(head), type=TENSOR_TYPES[kv_type.upper()].id)
    found = estimate(
        open_gguf(trunk).contents, open_gguf(head).contents,
        context=CONTEXT, ubatch=UBATCH, kv_type=kv_type, n_max=N_MAX,
    )  # fmt: skip
    sizes: dict[tuple[str, str], int] = {}
    for group in found.states_by_kind():
        kind = "recurrent" if group["kind"] == "convolution" else group["kind"]
        sizes[group["part"], kind] = sizes.get((group["part"], kind), 0) + group["bytes"]
    # The library allocates for attention first, then windows or states, then the indexer; the draft's context last.
    order = ("kv", "latent", "window", "recurrent", "indexer")
    ours = [(part, kind, sizes[part, kind]) for part in ("trunk", "head") for kind in order if (part, kind) in sizes]
    assert [mib for _, mib, _ in said] == [pytest.approx(size / 2**20, abs=0.00501) for _, _, size in ours]
    rows = {(group["part"], group["kind"]): group["rows"] for group in found.states_by_kind()}
    cells = [rows[part, kind] for part, kind, _ in ours if kind != "recurrent"]
    assert [count for kind, _, count in said if kind == "kv_cache"] == cells
