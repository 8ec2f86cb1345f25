"""A toy trunk with every kind of state, and toy heads that compute.

The trunk has a convolution, a delta rule and attention, of the reference operations; its weights are noise, and what it
says depends on everything that is before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from definitions import attend, causal_conv, delta_step, l2_norm, linear, rms_norm, rope, sigmoid
from torch import Tensor

from nextn.gguf_schema.contents import Contents, string
from nextn.runtime.model import Chunk, embedded, joined_positions, spans
from nextn.runtime.state import ROLLBACK, Rows, State, Trail

# Threads that wait for each other on busy cores make small matrices ten times slower.
torch.set_num_threads(1)

VOCABULARY, WIDTH, HEADS, D, TAPS = 24, 16, 2, 8, 4
EPS = 1e-6
CONTENTS = Contents({"general.architecture": string("toy")}, {}, "toy.gguf")


@dataclass(frozen=True)
class Matrix:
    """A weight [out, in]."""

    values: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def blocks(self) -> list[Tensor]:
        return [self.values]


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def matrix(seed: int, out: int, width: int) -> Matrix:
    return Matrix(noise(seed, out, width) / width**0.5)


class Attention:
    """Attention over all rows so far, whose keys and values are kept under a name."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.query, self.key, self.value = (matrix(seed + i, HEADS * D, WIDTH) for i in range(3))

    def rows(self) -> dict[str, Rows]:
        return {f"{self.name}.{part}": Rows((HEADS, D), torch.float32) for part in ("keys", "values")}

    def remember(self, x: Tensor, chunks: Sequence[Chunk]) -> None:
        key = rope(linear(x, self.key).reshape(-1, HEADS, D), joined_positions(chunks), D, 100.0)
        value = linear(x, self.value).reshape(-1, HEADS, D)
        for chunk, span in spans(chunks):
            chunk.state.rows[f"{self.name}.keys"].write(chunk.first, key[span])
            chunk.state.rows[f"{self.name}.values"].write(chunk.first, value[span])

    def __call__(self, x: Tensor, chunks: Sequence[Chunk]) -> Tensor:
        self.remember(x, chunks)
        query = rope(linear(x, self.query).reshape(-1, HEADS, D), joined_positions(chunks), D, 100.0)
        seen = []
        for chunk, span in spans(chunks):
            keys, values = (chunk.state.rows[f"{self.name}.{part}"] for part in ("keys", "values"))
            for end, row in enumerate(query[span], chunk.first + 1):
                seen.append(attend(row, keys.first(end), values.first(end), D**-0.5).flatten())
        return torch.stack(seen)


class ToyTrunk:
    contents = CONTENTS
    vocab_size = VOCABULARY
    hidden_width = WIDTH
    dtype = torch.float32
    device = "cpu"

    def __init__(self, seed: int = 6) -> None:
        seed = 1000 * seed
        self.embedding = noise(seed, VOCABULARY, WIDTH)
        self.conv = noise(seed + 1, WIDTH, TAPS) / 2
        self.parts = [matrix(seed + 2 + i, HEADS * D, WIDTH) for i in range(3)]
        self.rates, self.decays = matrix(seed + 5, HEADS, WIDTH), matrix(seed + 6, HEADS, WIDTH)
        self.attention = Attention("attention", seed + 10)
        self.output = matrix(seed + 20, VOCABULARY, WIDTH)
        self.forwards: list[list[int]] = []  # the numbers of rows of the chunks of each

    def new_state(self, rollback: int = ROLLBACK) -> State:
        trails = {
            "conv": Trail(torch.zeros(TAPS - 1, WIDTH), rollback),
            "delta": Trail(torch.zeros(HEADS, D, D), rollback),
        }
        return State(self.attention.rows(), trails)

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        self.forwards.append([len(chunk) for chunk in chunks])
        x = embedded(chunks, lambda tokens: self.embedding[torch.tensor(list(tokens), dtype=torch.int64)], WIDTH)
        x = x + self._recurrent(x, chunks)
        x = x + self.attention(rms_norm(x, None, EPS), chunks)
        for chunk in chunks:
            chunk.advance()
        return x

    def _recurrent(self, x: Tensor, chunks: Sequence[Chunk]) -> Tensor:
        query, key, value = (linear(x, part).reshape(-1, HEADS, D) for part in self.parts)
        query, key = l2_norm(query, EPS), l2_norm(key, EPS)
        rates, decays = sigmoid(linear(x, self.rates)), sigmoid(linear(x, self.decays))
        out = []
        for chunk, span in spans(chunks):
            conv, delta = chunk.state.trails["conv"], chunk.state.trails["delta"]
            for place, row in enumerate(range(span.start, span.stop), chunk.first):
                past = conv.at(place)
                mixed = causal_conv(x[row], past, self.conv)
                conv.put(place + 1, torch.cat((past[1:], x[row][None])))
                state, read = delta_step(
                    delta.at(place), query[row], key[row], value[row], decays[row][:, None], rates[row]
                )
                delta.put(place + 1, state)
                out.append(mixed + read.flatten())
        return torch.stack(out)

    def logits(self, hidden: Tensor) -> Tensor:
        return 4 * linear(rms_norm(hidden, None, EPS), self.output)


class ToyHeads:
    """Heads that compute: each a block of attention on the token and the hidden row beside it."""

    contents = CONTENTS
    hidden_width = WIDTH

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count = count
        self.embedding = noise(seed, VOCABULARY, WIDTH)
        self.blocks = [Attention(f"head.{k}", 100 * (seed + k + 1)) for k in range(count)]
        self.joining = [matrix(100 * (seed + k + 1) + 50, WIDTH, 2 * WIDTH) for k in range(count)]
        self.output = matrix(seed + 7, VOCABULARY, WIDTH)

    def new_state(self) -> State:
        return State({name: rows for block in self.blocks for name, rows in block.rows().items()})

    def catch_up(self, chunks: Sequence[Chunk]) -> None:
        for head, block in enumerate(self.blocks):
            block.remember(self._joined(chunks, head), chunks)
        for chunk in chunks:
            chunk.advance()

    def forward(self, chunks: Sequence[Chunk], head: int) -> Tensor:
        x = self._joined(chunks, head)
        return x + self.blocks[head](x, chunks)

    def logits(self, hidden: Tensor, head: int) -> Tensor:
        return 4 * linear(rms_norm(hidden, None, EPS), self.output)

    def _joined(self, chunks: Sequence[Chunk], head: int) -> Tensor:
        x = embedded(chunks, lambda tokens: self.embedding[torch.tensor(list(tokens), dtype=torch.int64)], WIDTH)
        hidden = torch.cat([chunk.hidden for chunk in chunks if chunk.hidden is not None])
        return linear(torch.cat((rms_norm(x, None, EPS), rms_norm(hidden, None, EPS)), dim=1), self.joining[head])
