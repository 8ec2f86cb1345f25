"""A model without arithmetic: what its states hold says which tokens it has read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from nextn.gguf_schema.contents import Contents, string
from nextn.runtime.model import Chunk
from nextn.runtime.state import ROLLBACK, Rows, State, Trail

WIDTH = 3


@dataclass
class Model:
    """Keeps its tokens, and as a trail their sum so far."""

    name: str = "toy"
    vocab_size: int = 50
    hidden_width: int = WIDTH
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    count: int = 1

    @property
    def contents(self) -> Contents:
        return Contents({"general.architecture": string(self.name)}, {})

    def new_state(self, rollback: int = ROLLBACK) -> State:
        rows = {"tokens": Rows((), torch.int64), "keys": Rows((2, self.hidden_width), self.dtype)}
        return State(rows, {"blk.1.sum": Trail(torch.zeros(1, dtype=self.dtype), rollback)})

    def read(self, state: State, *tokens: int, positions: list[int] | None = None) -> None:
        """Rows with positions count as an image's."""
        image = None if positions is None else torch.zeros(len(tokens), 1)
        chunk = Chunk(state, tokens, image, positions=positions)
        state.rows["tokens"].write(chunk.first, torch.tensor(tokens))
        keys = torch.tensor(tokens, dtype=self.dtype)[:, None, None]
        state.rows["keys"].write(chunk.first, keys.expand(-1, 2, self.hidden_width))
        trail = state.trails["blk.1.sum"]
        for place, token in enumerate(tokens, chunk.first):
            trail.put(place + 1, trail.at(place) + token)
        chunk.advance()


MODEL: Any = Model()


def says(state: State) -> tuple[list[int], float, int, int]:
    """All that a state of the model holds."""
    tokens = state.rows["tokens"].first(state.length).tolist()
    assert state.rows["keys"].first(state.length)[:, 1, 2].tolist() == tokens
    return tokens, float(state.trails["blk.1.sum"].at(state.length)), state.length, state.position


def reads(*tokens: int, rollback: int = ROLLBACK) -> State:
    state = MODEL.new_state(rollback)
    if tokens:
        MODEL.read(state, *tokens)
    return state
