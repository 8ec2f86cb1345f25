"""The dead-head probe: how well a head drafts for its trunk, and what is wrong with it, without any server.

The head is scored as it is, with the trunk's hidden rows of other places, and under each of the `corrections`; from
that follows what is wrong with it (`diagnosis`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.nextn_generic import EMBEDDING
from nextn.runtime.identity.corrections import Corrected, Correction, corrections
from nextn.runtime.identity.diagnosis import Scored, Tried, diagnosed
from nextn.runtime.identity.noise import spectra
from nextn.runtime.identity.scoring import Guesses, Stream, all_positions, first_position, said_by
from nextn.runtime.load import MODULES, load_pair
from nextn.runtime.model import Heads
from nextn.runtime.weights import Weights
from nextn.validators.findings import Findings

# Rows of two embeddings that are compared.
ROWS_COMPARED = 256


@dataclass(frozen=True)
class Position:
    """One position of drafts: places tried, the part that was right, and that was right with all before it; ranks."""

    tried: int
    right: float
    accepted: float
    median_rank: float
    mean_log_probability: float


@dataclass(frozen=True)
class Probe:
    """What was seen of a head, and what is wrong with it.

    `drafts` has for each stream and place how many tokens of a draft there would be accepted.
    """

    positions: tuple[Position, ...]
    scored: Scored
    tried: tuple[Tried, ...]
    findings: Findings
    streams: tuple[Stream, ...]
    drafts: tuple[tuple[int, ...], ...]

    def as_json(self) -> dict[str, Any]:
        """The probe as `nextn bench --json` prints it."""
        return {
            "positions": [asdict(position) for position in self.positions],
            "chance": self.scored.chance,
            "with_hidden_rows_of_other_places": self.scored.elsewhere.right,
            "embeddings_alike": self.scored.alike,
            "matrices": self.scored.spectra.looked_at,
            "trained_matrices": list(self.scored.spectra.trained),
            "corrections": [asdict(tried) for tried in self.tried],
        }


def probe(
    model: Path,
    draft: Path | None,
    prompts: Sequence[Sequence[int]],
    count: int,
    ends: Collection[int] = (),
    *,
    longest: int = 3,
    dtype: str = "float32",
    device: str = "cpu",
    kernels: str | None = None,
) -> Probe:
    """Look at the head of a file, or at that of `draft`, on what the trunk says behind prompts: `count` tokens each.

    Drafts have up to `longest` tokens. Raises what `load_pair` raises; InputError when there is no head, or the trunk
    says too little to tell anything.
    """
    pair = load_pair(model, draft, dtype=dtype, device=device, kernels=kernels)
    if pair.heads is None:
        raise InputError("no-heads", "has no head to look at", subject=str(model), remedy="give one with -d FILE")
    streams = [stream for stream in said_by(pair.trunk, prompts, count, ends) if stream.places]
    if not streams:
        remedy = "give other prompts, or more tokens with -n"
        raise InputError("too-little", "the trunk says no two tokens behind any prompt", remedy=remedy)
    return examined(*pair.weights, streams, longest, str(draft or model))


def examined(trunk: Weights, head: Weights, streams: Sequence[Stream], longest: int, subject: str) -> Probe:
    """Look at the heads of a file on what a trunk said; `subject` names the file in findings."""
    heads = _heads(head)
    guesses = all_positions(heads, streams, min(longest, heads.count) if heads.count > 1 else longest)
    first = guesses[0]
    drafts = leading(streams, guesses)
    positions = tuple(_positions(guesses, drafts))
    scored = Scored(
        tuple(position.right for position in positions),
        _chance(streams),
        _tried(Correction("", "hidden rows of other places"), first, first_position(heads, streams, _elsewhere)),
        _alike(trunk, head) if EMBEDDING in head and head is not trunk else None,
        spectra(head),
    )
    tried = tuple(
        _tried(each, first, first_position(_heads(Corrected(head, each.edits)), streams, each.rows))
        for each in corrections(trunk, head)
    )
    findings = diagnosed(scored, tried, subject)
    return Probe(positions, scored, tried, findings, tuple(streams), tuple(map(tuple, drafts)))


def _heads(weights: Weights) -> Heads:
    module = import_module(f"nextn.runtime.models.{MODULES[weights.contents.architecture]}")
    heads: Heads = module.Heads(weights)
    return heads


def leading(streams: Sequence[Stream], guesses: Sequence[Guesses]) -> list[list[int]]:
    """For each stream and place how many guesses are right up to the first wrong one."""
    ranks = [iter(position.rank) for position in guesses]
    found: list[list[int]] = []
    for stream in streams:
        found.append([])
        for place in stream.places:
            there = [next(rank) for rank in ranks[: len(stream.tokens) - 1 - place]]
            found[-1].append(next((step for step, rank in enumerate(there) if rank), len(there)))
    return found


def _positions(guesses: Sequence[Guesses], drafts: Sequence[Sequence[int]]) -> Iterator[Position]:
    for step, position in enumerate(guesses):
        tried = len(position.rank)
        accepted = sum(right > step for of_stream in drafts for right in of_stream) / tried
        yield Position(tried, position.rate, accepted, median(position.rank), position.mean_log_probability)


def _tried(correction: Correction, before: Guesses, after: Guesses) -> Tried:
    pairs = list(zip(before.hits, after.hits, strict=True))
    gained, lost = sum(a and not b for b, a in pairs), sum(b and not a for b, a in pairs)
    return Tried(correction.fault, correction.where, after.rate, gained, lost, correction.needed)


def _elsewhere(rows: Tensor) -> Tensor:
    """The hidden rows of other places: half of the sequence away."""
    return rows.roll(max(len(rows) // 2, 1), 0)


def _chance(streams: Sequence[Stream]) -> float:
    """The part of the places at which the most frequent token is right."""
    said = Counter(token for stream in streams for token in stream.tokens[stream.start + 1 :])
    return max(said.values()) / said.total()


def _alike(trunk: Weights, head: Weights) -> float:
    """The mean cosine between a token's rows in the embeddings of both files."""
    ours, theirs = trunk.matrix(EMBEDDING), head.matrix(EMBEDDING)
    count = min(ours.shape[0], theirs.shape[0])
    rows = list(range(0, count, max(count // ROWS_COMPARED, 1)))
    cosines = torch.cosine_similarity(ours.gather(rows).double(), theirs.gather(rows).double(), dim=1)
    return float(cosines.mean())
