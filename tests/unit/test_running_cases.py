"""Cases of running that need real files: what a sidecar borrows on a GPU, prompts that end at a pool's boundary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nextn.gguf_schema.architecture import Role
from nextn.runtime.drafting import Options
from nextn.runtime.greedy import greedy
from nextn.runtime.load import Pair, load_pair
from nextn.runtime.model import Chunk
from nextn.runtime.speculative import Speculator

Converted = Callable[[str], dict[Role, Path]]
POOL = 4  # attention.indexer.kpool of glm5-next-tiny, and the rows of a block of qwen4exp-tiny
LENGTHS = [POOL - 1, POOL, POOL + 1, 2 * POOL - 1, 2 * POOL, 2 * POOL + 1]


@pytest.fixture(scope="module", params=["glm5-next", "qwen4exp"])
def pair(converted: Converted, request: pytest.FixtureRequest) -> Pair:
    return load_pair(converted(request.param)[Role.COMBINED])


@pytest.mark.parametrize("length", LENGTHS)
def test_case_r26_prompts_that_end_at_the_boundary_of_a_pool(pair: Pair, length: int) -> None:
    """Long prompts met a launch limit of the pooled indexer: whole, or row by row, it is one prompt."""
    prompt = [(7 * n) % 400 + 5 for n in range(length)]
    whole = pair.trunk.forward([Chunk(pair.trunk.new_state(), prompt)])
    state = pair.trunk.new_state()
    assert torch.equal(torch.cat([pair.trunk.forward([Chunk(state, [token])]) for token in prompt]), whole)
    plain = greedy(pair.trunk, prompt, 2 * POOL + 1)
    for ubatch in (3, 512):
        speculator = Speculator(pair.trunk, pair.heads, Options(n_max=3, ubatch=ubatch, strict=True))
        [run] = speculator.generate([prompt], 2 * POOL + 1)
        assert run.tokens == plain


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("family", ["step35", "qwen4exp", "glm5-next"])
def test_case_r04_a_sidecar_borrows_on_the_gpu_as_on_the_cpu(converted: Converted, family: str) -> None:
    """Borrowing worked only where the target's embedding was on the CPU."""
    files, said, drafted = converted(family), [], []
    for device in ("cpu", "cuda"):
        pair = load_pair(files[Role.TRUNK], files[Role.MTP_SHARED], device=device)
        [run] = Speculator(pair.trunk, pair.heads, Options(strict=True)).generate([[5, 6, 7, 8, 9]], 12)
        said.append(run.tokens)
        drafted.append([made.drafted for made in run.rounds])
    assert (said[0], drafted[0]) == (said[1], drafted[1])
