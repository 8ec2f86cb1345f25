"""One sequence with its drafts: the states of trunk and heads, and what lies between them; saved and loaded as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nextn.gguf_schema.errors import InputError
from nextn.runtime.model import Heads, Trunk
from nextn.runtime.state import ROLLBACK, State

FORMAT = "nextn session 1"


@dataclass
class Session:
    """A sequence between two rounds.

    `last` was sampled and is in no state yet. `pending` [hidden width] is the trunk's hidden row of the token before,
    which the heads take beside `last`; zeros before the first token.
    """

    trunk: State
    heads: State | None
    pending: Tensor
    last: int | None = None
    tokens: list[int] = field(default_factory=list)
    drafting: bool = True

    def fork(self) -> Session:
        """A second sequence that begins like this one."""
        heads = self.heads.fork() if self.heads else None
        return Session(self.trunk.fork(), heads, self.pending, self.last, list(self.tokens), self.drafting)

    def save(self, path: Path, architecture: str) -> None:
        """Write it to a file, with the name of the architecture, beside which it means nothing."""
        held = {f"trunk.{name}": tensor for name, tensor in self.trunk.tensors().items()}
        if self.heads is not None:
            held |= {f"heads.{name}": tensor for name, tensor in self.heads.tensors().items()}
        held["pending"] = self.pending.contiguous()
        held["tokens"] = torch.tensor(self.tokens, dtype=torch.int64)
        told = {"format": FORMAT, "architecture": architecture, "last": "" if self.last is None else str(self.last)}
        partial = path.with_name(path.name + ".partial")
        save_file(held, partial, told)
        partial.replace(path)


def open_session(trunk: Trunk, heads: Heads | None, rollback: int = ROLLBACK) -> Session:
    """An empty sequence."""
    return Session(trunk.new_state(rollback), heads.new_state() if heads else None, no_hidden(trunk))


def no_hidden(trunk: Trunk) -> Tensor:
    """What stands for the hidden row before the first token: zeros [hidden width]."""
    return torch.zeros(trunk.hidden_width, dtype=trunk.dtype, device=trunk.device)


def load_session(path: Path, trunk: Trunk, heads: Heads | None, rollback: int = ROLLBACK) -> Session:
    """Read a session of the same model, which can take back so many rows; InputError when it is something else."""
    try:
        with safe_open(path, "pt", device=trunk.device) as file:
            told = file.metadata() or {}
            held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise InputError("unreadable", f"cannot be read as a session: {error}", subject=str(path)) from error
    architecture = trunk.contents.architecture
    if told.get("format") != FORMAT or told.get("architecture") != architecture:
        message = f"is no session of {architecture}: {told.get('format')}, {told.get('architecture')}"
        raise InputError("other-session", message, subject=str(path))
    session = open_session(trunk, heads, rollback)
    try:
        for state, prefix in ((session.trunk, "trunk."), (session.heads, "heads.")):
            if state is not None:
                state.load_tensors({k.removeprefix(prefix): v for k, v in held.items() if k.startswith(prefix)})
        session.pending, session.tokens = held["pending"], held["tokens"].tolist()
    except (KeyError, RuntimeError) as error:
        message = f"does not fit the model: {error}"
        raise InputError("other-session", message, subject=str(path)) from error
    session.last = int(told["last"]) if told["last"] else None
    return session


def shifted(session: Session, hidden: Tensor) -> Tensor:
    """The hidden rows that the heads take beside tokens whose own are `hidden` [rows, width]: one token earlier."""
    return torch.cat((session.pending[None], hidden[:-1]))


def rows_of(parts: Sequence[int], hidden: Tensor) -> list[Tensor]:
    """Rows of all sequences, for each its own."""
    return list(torch.split(hidden, list(parts)))
