"""Latent attention of glm5-next, without positions: what is kept of a row is one latent that keys and values come from.

Beyond a budget a row attends only to the rows of the pools that an indexer chooses, and to the tail: the rows since the
last whole pool, itself included. Pools are of consecutive rows from the first of the sequence on, whatever their
positions. Source: `build_dsa_layer`, `build_kpool_select` in src/models/glm5-next.cpp of llama.cpp b11549.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nextn.gguf_schema.glm5_next import Glm5Next
from nextn.kernels.glm5_next import rows_of, tail_start
from nextn.kernels.reference import inverse_sqrt, top
from nextn.runtime.model import Chunk, joined, spans
from nextn.runtime.state import Rows, State
from nextn.runtime.weights import Weights

# The rows that each row of a forward attends to; None for all up to itself.
Selection = list[Tensor | None]


class Indexer:
    """One block's choice of pools."""

    def __init__(self, weights: Weights, h: Glm5Next, block: int) -> None:
        name = f"blk.{block}"
        self._key_rows, self._gate_rows, self._pooled_rows = (f"{name}.{part}" for part in ("key", "gate", "pooled"))
        self._heads, self._width = h.attention_indexer_head_count, h.attention_indexer_key_length
        self._members, self._tail = h.attention_indexer_kpool, h.attention_indexer_kpool_select_tail
        self._budget = h.attention_indexer_top_k // self._members  # pools
        self._eps = h.attention_layer_norm_epsilon
        self._dtype, self._device = weights.dtype, weights.device
        self._ops = weights.ops

        self._query = weights.matrix(f"{name}.indexer.attn_q_b.weight")
        self._key = weights.matrix(f"{name}.indexer.attn_k.weight")
        self._key_norm = weights.vector(f"{name}.indexer.k_norm.weight")
        self._key_bias = weights.vector(f"{name}.indexer.k_norm.bias")
        self._weight = weights.matrix(f"{name}.indexer.proj.weight")
        self._gate = weights.matrix(f"{name}.indexer_compressor_gate.weight")
        self._offsets = weights.vector(f"{name}.indexer_compressor_ape.weight")  # [members, width]

    def rows(self) -> dict[str, Rows]:
        """Its parts of an empty state: keys and gates of rows, and at the last row of a pool the pool's key."""
        names = (self._key_rows, self._gate_rows, self._pooled_rows)
        return {name: Rows((self._width,), self._dtype, self._device) for name in names}

    def write(self, x: Tensor, chunks: Sequence[Chunk]) -> None:
        """Keep what later rows read of normed rows x [rows, width]; and of the pools that they complete."""
        keys, gates = self._ops.linears(x, (self._key, self._gate))
        keys = self._ops.layer_norm(keys, self._key_norm, self._key_bias, self._eps)
        for chunk, span in spans(chunks):
            rows, first = chunk.state.rows, chunk.first
            rows[self._key_rows].write(first, keys[span])
            rows[self._gate_rows].write(first, gates[span])
            pooled = torch.zeros_like(keys[span])
            for stop in range(tail_start(first, self._members), first + len(chunk) + 1, self._members):
                if stop > first:
                    pool = slice(stop - self._members, stop)
                    members, weights = rows[self._key_rows].first(stop)[pool], rows[self._gate_rows].first(stop)[pool]
                    pooled[stop - 1 - first] = self._ops.pooled_key(members, weights, self._offsets)
            rows[self._pooled_rows].write(first, pooled)

    def select(self, x: Tensor, latent_query: Tensor, chunks: Sequence[Chunk]) -> Selection:
        """What each row of x [rows, width] attends to, whose query latents are [rows, rank]."""
        places = [(chunk.state, place) for chunk in chunks for place in range(chunk.first, chunk.first + len(chunk))]
        ends = [tail_start(place, self._members) for _, place in places]
        crowded = [i for i, end in enumerate(ends) if end > self._budget * self._members]
        scored = dict(zip(crowded, self._scored(x, latent_query, places, crowded), strict=True))
        selection: Selection = []
        for i, ((_, place), end) in enumerate(zip(places, ends, strict=True)):
            tail = range(end, place + 1) if self._tail else range(0)
            if i not in scored and end + len(tail) == place + 1:
                selection.append(None)
                continue
            pools = top(scored[i], self._budget) if i in scored else range(end // self._members)
            selection.append(torch.tensor(rows_of(pools, self._members, tail), dtype=torch.int64, device=self._device))
        return selection

    def _scored(
        self, x: Tensor, latent_query: Tensor, places: Sequence[tuple[State, int]], crowded: list[int]
    ) -> list[Tensor]:
        """Scores of the pools that each crowded row sees: one that sees more than it may attend to."""
        if not crowded:
            return []
        queries = self._ops.linear(latent_query[crowded], self._query).reshape(len(crowded), self._heads, self._width)
        weights = self._ops.linear(x[crowded], self._weight) * inverse_sqrt(self._heads * self._width)
        scores = []
        for i, query, weight in zip(crowded, queries, weights, strict=True):
            state, place = places[i]
            held = state.rows[self._pooled_rows].first(tail_start(place, self._members))
            scores.append(self._ops.pool_scores(query, weight, held[self._members - 1 :: self._members].contiguous()))
        return scores


class LatentAttention:
    """One block's latent attention, absorbed: queries go into the space of latents, which are keys and values."""

    def __init__(self, weights: Weights, h: Glm5Next, block: int) -> None:
        name = f"blk.{block}"
        self._latent_rows = f"{name}.latent"
        self._heads, self._rank = h.attention_head_count, h.attention_kv_lora_rank
        self._eps = h.attention_layer_norm_rms_epsilon
        self._scale = inverse_sqrt(h.attention_key_length_mla)  # of a query before it is absorbed
        self._dtype, self._device = weights.dtype, weights.device
        self._ops = weights.ops

        self._query_a = weights.matrix(f"{name}.attn_q_a.weight")
        self._query_norm = weights.vector(f"{name}.attn_q_a_norm.weight")
        self._query_b = weights.matrix(f"{name}.attn_q_b.weight")
        self._latent = weights.matrix(f"{name}.attn_kv_a_mqa.weight")
        self._latent_norm = weights.vector(f"{name}.attn_kv_a_norm.weight")
        self._absorb = weights.matrix(f"{name}.attn_k_b.weight")  # [heads, rank, query width]
        self._expand = weights.matrix(f"{name}.attn_v_b.weight")  # [heads, value width, rank]
        self._output = weights.matrix(f"{name}.attn_output.weight")
        self._indexer = Indexer(weights, h, block) if h.has_indexer(block) else None

    @property
    def selects(self) -> bool:
        """Whether it has an indexer of its own; others attend to what the last one before them chose."""
        return self._indexer is not None

    def rows(self) -> dict[str, Rows]:
        """Its parts of an empty state."""
        latents = {self._latent_rows: Rows((self._rank,), self._dtype, self._device)}
        return latents | (self._indexer.rows() if self._indexer else {})

    def write(self, x: Tensor, chunks: Sequence[Chunk]) -> None:
        """Keep what later rows read of normed rows x [rows, width]."""
        latents = self._ops.rms_norm(self._ops.linear(x, self._latent), self._latent_norm, self._eps)
        for chunk, span in spans(chunks):
            chunk.state.rows[self._latent_rows].write(chunk.first, latents[span])
        if self._indexer is not None:
            self._indexer.write(x, chunks)

    def __call__(self, x: Tensor, chunks: Sequence[Chunk], selection: Selection | None) -> tuple[Tensor, Selection]:
        """Normed rows x [rows, width], which are written, to rows [rows, width]; and what they attended to.

        `selection` is what the last block before this one that has an indexer chose.
        """
        latent_query = self._ops.rms_norm(self._ops.linear(x, self._query_a), self._query_norm, self._eps)
        if self._indexer is not None:
            selection = self._indexer.select(x, latent_query, chunks)
        if selection is None:
            raise ValueError("a block without an indexer stands before all that have one")
        query = self._ops.linear(latent_query, self._query_b).reshape(x.shape[0], self._heads, -1)
        read = self._attended(self._ops.linear_by_head(query, self._absorb), chunks, selection)
        values = self._ops.linear_by_head(read, self._expand)
        return self._ops.linear(values.flatten(1), self._output), selection

    def _attended(self, query: Tensor, chunks: Sequence[Chunk], selection: Selection) -> Tensor:
        """Weighted latents [rows, heads, rank] for absorbed queries of the same shape."""
        rows = []
        for chunk, span in spans(chunks):
            ends = range(chunk.first + 1, chunk.first + len(chunk) + 1)
            latents = chunk.state.rows[self._latent_rows].first(ends[-1])[:, None]
            for place, count in _runs(selection[span]):
                queries, seen = query[span][place : place + count], selection[span][place]
                if seen is None:
                    reach = ([0] * count, ends[place : place + count])
                    rows.append(self._ops.attend(queries, latents, latents, *reach, self._scale))
                else:
                    chosen = latents[seen]
                    rows.append(self._ops.attend(queries, chosen, chosen, [0], [len(chosen)], self._scale))
        return joined(rows)


def _runs(selection: Selection) -> Iterator[tuple[int, int]]:
    """Rows that see all up to themselves, as many as stand together; every other row by itself: place and count."""
    start = 0
    for place, seen in enumerate([*selection, torch.empty(0)]):
        if seen is not None:
            if place > start:
                yield start, place - start
            if place < len(selection):
                yield place, 1
            start = place + 1
