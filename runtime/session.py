"""One sequence with its drafts: the states of trunk and heads, and what lies between them; saved and loaded as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nextn.gguf_schema.architecture import block_of
from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.errors import InputError, reason
from nextn.gguf_schema.nextn_generic import BLOCK_COUNT, NEXTN_PREDICT_LAYERS, TOKENS, blocks_of
from nextn.runtime.model import Heads, Trunk
from nextn.runtime.state import ROLLBACK, State

FORMAT = "nextn session 2"
# Keys that tell models of one shape apart, and keys that say what a file holds of a model.
NAMES = ("general.name", TOKENS)
OF_FILES = (BLOCK_COUNT, NEXTN_PREDICT_LAYERS)


@dataclass
class Session:
    """A sequence between two rounds.

    `last` was sampled and is in no state yet. `pending` [hidden width] is the trunk's hidden row of the token before,
    which the heads take beside `last`; zeros before the first token. `tokens` are those that were read or said, -1 for
    rows that are none. Without `drafting` the heads have fallen behind for good.
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

    def save(self, path: Path, trunk: Trunk, heads: Heads | None = None) -> None:
        """Write it to a file, with what tells the models apart that it is of: beside others it means nothing.

        The file is complete or not there. InputError when it cannot be written.
        """
        held = {f"trunk.{name}": tensor for name, tensor in self.trunk.tensors().items()}
        if self.heads is not None:
            held |= {f"heads.{name}": tensor for name, tensor in self.heads.tensors().items()}
        held["pending"] = self.pending.contiguous()
        held["tokens"] = torch.tensor(self.tokens, dtype=torch.int64)
        told = {"format": FORMAT, "last": "" if self.last is None else str(self.last)}
        told |= {"drafting": "yes" if self.drafting else "no", "trunk": identity(trunk.contents, of_heads=False)}
        if heads is not None:
            told["heads"] = identity(heads.contents, of_heads=True)
        partial = path.with_name(path.name + ".partial")
        try:
            save_file(_apart(held), partial, told)
            partial.replace(path)
        except (OSError, SafetensorError) as error:
            raise InputError("write-error", f"cannot be written: {error}", subject=str(path)) from error
        finally:
            partial.unlink(missing_ok=True)


def open_session(trunk: Trunk, heads: Heads | None, rollback: int = ROLLBACK) -> Session:
    """An empty sequence, of which so many rows can be taken back."""
    return Session(trunk.new_state(rollback), heads.new_state() if heads else None, no_hidden(trunk))


def no_hidden(trunk: Trunk) -> Tensor:
    """What stands for the hidden row before the first token: zeros [hidden width]."""
    return torch.zeros(trunk.hidden_width, dtype=trunk.dtype, device=trunk.device)


def load_session(path: Path, trunk: Trunk, heads: Heads | None, rollback: int = ROLLBACK) -> Session:
    """Read a session of the same model; heads that it was saved with may be left out.

    InputError when it cannot be read, or is of something else. No more rows can be taken back than when it was saved.
    """
    held, told = _read(path)
    if told.get("format") != FORMAT:
        raise InputError("other-session", f"is no session of this version: {told.get('format')}", subject=str(path))
    if told.get("trunk") != identity(trunk.contents, of_heads=False):
        raise InputError("other-session", f"is of another model than {trunk.contents.name}", subject=str(path))
    remedy = "load it without a draft"
    if heads is not None and "heads.place" not in held:
        raise InputError("other-session", "was saved without draft heads", subject=str(path), remedy=remedy)
    if heads is not None and told.get("heads") != identity(heads.contents, of_heads=True):
        message = f"is of other draft heads than {heads.contents.name}"
        raise InputError("other-session", message, subject=str(path), remedy=remedy)
    session = open_session(trunk, heads, rollback)
    try:
        for state, prefix in ((session.trunk, "trunk."), (session.heads, "heads.")):
            if state is not None:
                state.load_tensors({k.removeprefix(prefix): v for k, v in held.items() if k.startswith(prefix)})
        _fill(session, held, told, trunk.vocab_size)
    except KeyError as error:
        raise InputError("other-session", f"lacks {error} of this model", subject=str(path)) from error
    except ValueError as error:
        raise InputError("other-session", f"does not fit the model: {error}", subject=str(path)) from error
    return session


def identity(contents: Contents, *, of_heads: bool) -> str:
    """What tells a trunk, or the heads, from others of the same shapes: a hash of names, keys, and its tensors' types.

    It is the same for a combined file and the files that are cut from it; data is not read.
    """
    return sha256("\n".join(_identifying(contents, of_heads)).encode(errors="surrogatepass")).hexdigest()


def _identifying(contents: Contents, of_heads: bool) -> Iterator[str]:
    trunk_blocks, _ = blocks_of(contents)
    yield contents.architecture
    own = f"{contents.architecture}."
    for key in sorted(key for key in contents.keys if key in NAMES or (key.startswith(own) and not of_heads)):
        value = contents.keys[key]
        # Arrays over blocks are longer in a file with heads; what comes of heads alone says nothing of a trunk.
        items = value.items if key in NAMES else value.items[:trunk_blocks]
        if key.removeprefix(own) not in OF_FILES:
            yield f"{key} {value.type_name} {list(items)}"
    for name in sorted(contents.tensors):
        block, tensor = block_of(name), contents.tensors[name]
        if block is not None and (block >= trunk_blocks) is of_heads:
            yield f"{name} {tensor.type.name} {list(tensor.ne)}"


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file, and what it tells of itself."""
    try:
        with safe_open(path, "pt") as file:
            told = file.metadata() or {}
            return {name: file.get_tensor(name) for name in file.keys()}, told  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise InputError("unreadable", f"cannot be read as a session: {reason(error)}", subject=str(path)) from error


def _fill(session: Session, held: Mapping[str, Tensor], told: Mapping[str, str], vocab_size: int) -> None:
    """Take over what lies between the states; KeyError and ValueError as `State.load_tensors` raises them."""
    pending, tokens = held["pending"], held["tokens"]
    if (pending.shape, pending.dtype) != (session.pending.shape, session.pending.dtype):
        raise ValueError(f"pending is {pending.dtype} {list(pending.shape)}")
    if tokens.dtype != torch.int64 or tokens.dim() != 1:
        raise ValueError(f"tokens are {tokens.dtype} {list(tokens.shape)}")
    session.pending, session.tokens = pending.to(session.pending.device), tokens.tolist()
    session.last = int(told["last"]) if told["last"] else None
    session.drafting = told["drafting"] == "yes"
    sampled = () if session.last is None else (session.last,)
    if any(token >= vocab_size for token in (*session.tokens, *sampled)) or min(sampled, default=0) < 0:
        raise ValueError(f"it has tokens beyond the {vocab_size} of the vocabulary")


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, copied where one shares memory with another: the format has each of them by itself."""
    seen: set[int] = set()
    apart: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return apart


def shifted(session: Session, hidden: Tensor) -> Tensor:
    """The hidden rows that the heads take beside tokens whose own are `hidden` [rows, width]: one token earlier."""
    return torch.cat((session.pending[None], hidden[:-1]))


def rows_of(parts: Sequence[int], hidden: Tensor) -> list[Tensor]:
    """Rows of all sequences, for each its own."""
    return list(torch.split(hidden, list(parts)))
