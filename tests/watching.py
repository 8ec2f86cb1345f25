"""Watches a speculative loop from outside: after each round, states are held against those that never saw a draft."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.runtime.model import Chunk, Heads, Trunk
from nextn.runtime.runs import Run
from nextn.runtime.session import Session, no_hidden
from nextn.runtime.state import State


def assert_same(state: State, undrafted: State) -> None:
    """Two states hold the same, bit for bit, as far as later rows can read it."""
    assert (state.length, state.position) == (undrafted.length, undrafted.position)
    assert state.rows.keys() == undrafted.rows.keys()
    for name, rows in state.rows.items():
        assert torch.equal(rows.first(state.length), undrafted.rows[name].first(state.length)), name
    assert state.trails.keys() == undrafted.trails.keys()
    for name, trail in state.trails.items():
        assert torch.equal(trail.at(state.length), undrafted.trails[name].at(state.length)), name
        assert max(length for length, _ in trail.kept()) == state.length, name


class Watch:
    """To be called after each round: asserts I1, and I2 for the trunk's state and the heads', each built row by row.

    That no hidden row of a head is left between rounds (I3) follows from both: `pending` is the trunk's, and so are all
    rows that the heads' state was made of. Only for prompts of tokens.
    """

    def __init__(self, trunk: Trunk, heads: Heads | None) -> None:
        self.trunk = trunk
        self.heads = heads
        self.rounds = 0
        self._undrafted: dict[int, tuple[State, State | None, Tensor]] = {}

    def __call__(self, run: Run, session: Session) -> None:
        self.rounds += 1
        state, caches, pending = self._undrafted.get(id(run)) or (
            self.trunk.new_state(1),
            self.heads.new_state() if self.heads else None,
            no_hidden(self.trunk),
        )
        assert len(session.tokens) >= session.trunk.length
        for token in session.tokens[state.length : session.trunk.length]:
            [hidden] = self.trunk.forward([Chunk(state, [token])])
            if self.heads and caches:
                self.heads.catch_up([Chunk(caches, [token], hidden=pending[None])])
            pending = hidden
        self._undrafted[id(run)] = (state, caches, pending)
        assert_same(session.trunk, state)
        assert torch.equal(session.pending, pending)
        if session.heads and caches and session.drafting:
            assert_same(session.heads, caches)
