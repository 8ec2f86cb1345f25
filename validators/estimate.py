"""Memory before loading, from headers alone: weights, caches, states and activations of a model and its draft.

The question that measuring cannot answer for a shared sidecar, because such a file cannot be loaded by itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nextn.gguf_schema.architecture import block_of
from nextn.gguf_schema.nextn_generic import EMBEDDING, OUTPUT, block_indices, blocks_of
from nextn.gguf_schema.reading import ARCHITECTURES, read_hyperparameters
from nextn.validators.memory import FAMILIES, Settings, State, largest_activation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nextn.gguf_schema.architecture import Hyperparameters
    from nextn.gguf_schema.contents import Contents
    from nextn.validators.findings import Findings

# What n_max is in llama.cpp when nothing else is asked for (common.h).
LONGEST_DRAFT = 3
TABLE = "per_layer_token_embd.weight"
PARTS = ("embeddings", "table", "trunk blocks", "head blocks", "output", "other")
# Looked up row by row: llama.cpp keeps them in host memory whatever is offloaded (`dev_input` in llama-model.cpp).
HOST = frozenset({"embeddings", "table"})


@dataclass(frozen=True)
class Weights:
    """Bytes of one tensor: whose file it is in, the part of the model, its type, its block (-1 outside blocks)."""

    owner: str
    name: str
    part: str
    type: str
    block: int
    bytes: int


@dataclass(frozen=True)
class Estimate:
    """Memory of a model, with its draft when there is one; all sizes in bytes.

    `states` are (owner, part, state) with the part `trunk` or `head`. `borrowed` maps tensors that a shared sidecar
    takes from its target to their bytes there, None while the target is not known; they are counted with the target.
    `activation` is the largest tensor of a graph. `notes` say what is not counted.
    """

    settings: Settings
    weights: tuple[Weights, ...]
    states: tuple[tuple[str, str, State], ...]
    borrowed: dict[str, int | None]
    activation: tuple[str, int]
    blocks: dict[str, int]
    notes: tuple[str, ...] = ()

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(weights.bytes for weights in self.weights)

    @property
    def state_bytes(self) -> int:
        """Bytes of all caches and states."""
        return sum(state.bytes for _, _, state in self.states)

    @property
    def total(self) -> int:
        """Bytes of everything on one device, host memory included."""
        return self.weight_bytes + self.state_bytes + self.activation[1]

    def devices(self, count: int) -> tuple[int, tuple[int, ...]]:
        """Bytes in host memory and on each of `count` equal devices with a layer split of everything else.

        Block i of a file of n blocks goes to the device of i / (n + 1), what is behind the blocks to the last one; a
        draft's blocks keep their numbers. Each device has activations of its own.
        Source: load_tensors in llama-model.cpp.
        """
        host, on = 0, [self.activation[1]] * count
        for weights in self.weights:
            if weights.part in HOST:
                host += weights.bytes
            else:
                on[self._device(weights.owner, weights.part, weights.block, count)] += weights.bytes
        for owner, part, state in self.states:
            on[self._device(owner, part, state.block, count)] += state.bytes
        return host, tuple(on)

    def _device(self, owner: str, part: str, block: int, count: int) -> int:
        layers = self.blocks[owner] + 1
        place = block if block >= 0 else layers - 1 if part == "output" else 0
        return min(place * count // layers, count - 1)

    def as_json(self) -> dict[str, Any]:
        """The estimate as `--json` prints it."""
        s = self.settings
        (host, (device,)), (split_host, split) = self.devices(1), self.devices(2)
        return {
            "context": s.context,
            "ubatch": s.ubatch,
            "kv_type": s.kv_type,
            "n_max": s.n_max,
            "weights": {
                "bytes": self.weight_bytes,
                "by_part": self.weights_by("part"),
                "by_type": self.weights_by("type"),
                "by_file": self.weights_by("owner"),
            },
            "borrowed": [{"name": name, "bytes": size} for name, size in self.borrowed.items()],
            "state": {"bytes": self.state_bytes, "by_kind": self.states_by_kind()},
            "activation": {"name": self.activation[0], "bytes": self.activation[1]},
            "total": self.total,
            "one_device": {"host": host, "devices": [device]},
            "layer_split": {"host": split_host, "devices": list(split)},
            "notes": list(self.notes),
        }

    def weights_by(self, what: str) -> dict[str, int]:
        """Bytes of the weights by `part`, `type` or `owner`, parts in the order of a file."""
        sums: Counter[str] = Counter()
        for weights in self.weights:
            sums[getattr(weights, what)] += weights.bytes
        order = PARTS if what == "part" else sums
        return {name: sums[name] for name in order if sums[name]}

    def states_by_kind(self) -> list[dict[str, Any]]:
        """The states summed over blocks, by part and kind."""
        groups: dict[tuple[str, str], list[State]] = {}
        for _, part, state in self.states:
            groups.setdefault((part, state.kind), []).append(state)
        return [
            {
                "part": part,
                "kind": kind,
                "blocks": len({state.block for state in states}),
                "rows": states[0].rows,
                "bytes": sum(state.bytes for state in states),
            }
            for (part, kind), states in groups.items()
        ]


def estimate(
    trunk: Contents,
    draft: Contents | None = None,
    *,
    context: int,
    ubatch: int,
    kv_type: str,
    n_max: int = LONGEST_DRAFT,
) -> Estimate:
    """What loading the file `trunk`, and with it `draft`, takes; `trunk` may be a head or a shared sidecar alone.

    A head runs in a context of its own, of the same size, without recurrent state. While anything drafts, a trunk keeps
    1 + `n_max` planes of each recurrent state, to go back when drafts are rejected. UsageError when the cache's rows
    are no whole blocks of `kv_type`.
    """
    # As llama-context.cpp: n_ubatch is at most n_batch, which is at most n_ctx.
    settings = Settings(context, min(ubatch, context), kv_type, n_max)
    files = {"model": trunk} | ({"draft": draft} if draft is not None else {})
    drafting = any(_has_head(contents) for contents in files.values())
    weights = tuple(weight for owner, contents in files.items() for weight in weights_of(owner, contents))
    notes: list[str] = []
    states: list[tuple[str, str, State]] = []
    activations = [("", 0)]
    for owner, contents in files.items():
        h = _hyperparameters(contents, notes)
        if h is None:
            continue
        family = FAMILIES[contents.architecture]
        has_trunk = any(block < h.trunk_blocks for block in block_indices(contents))
        # A file drafts for itself unless it has a draft.
        parts = {"trunk": has_trunk and owner == "model", "head": owner == "draft" or draft is None}
        ranges = {"trunk": range(h.trunk_blocks), "head": range(h.trunk_blocks, h.trunk_blocks + h.nextn_blocks)}
        planes = {"trunk": 1 + (n_max if drafting else 0), "head": 1}
        try:
            states += [
                (owner, part, state)
                for part, wanted in parts.items()
                if wanted
                for state in family.states(h, ranges[part], settings, planes[part])
            ]
            activations.append(largest_activation(family.rows(h), h.vocab_size, settings))
        except (TypeError, IndexError, ValueError):
            notes.append(
                f"{contents.name}: keys that its state follows from are missing or wrong; only weights counted"
            )
    return Estimate(
        settings,
        weights,
        tuple(states),
        _borrowed(trunk, draft),
        max(activations, key=lambda activation: activation[1]),
        {owner: max((weight.block for weight in weights if weight.owner == owner), default=-1) + 1 for owner in files},
        tuple(dict.fromkeys(notes)),
    )


def examine_context(contents: Contents, context: int, findings: Findings) -> None:
    """Say so when a context is asked for that is longer than the model was made for."""
    own = contents.get("context_length")
    if own and isinstance(own.value, int) and 0 < own.value < context:
        key, message = f"{contents.architecture}.context_length", f"is {own.value}, fewer than the {context} asked for"
        findings.note("context-beyond", key, message, f"ask for at most {own.value}, or scale the rotary embedding")


def weights_of(owner: str, contents: Contents) -> Iterator[Weights]:
    """The tensors of a file as parts of its model."""
    trunk_blocks, _ = blocks_of(contents)
    for tensor in contents:
        block = block_of(tensor.name)
        if block is not None:
            part = "trunk blocks" if block < trunk_blocks else "head blocks"
        elif tensor.name.startswith("mtp."):
            part = "head blocks"
        elif tensor.name == EMBEDDING:
            part = "embeddings"
        elif tensor.name == TABLE:
            part = "table"
        else:
            part = "output" if tensor.name.startswith("output") else "other"
        yield Weights(owner, tensor.name, part, tensor.type.name, -1 if block is None else block, tensor.nbytes)


def _has_head(contents: Contents) -> bool:
    return blocks_of(contents)[1] > 0


def _hyperparameters(contents: Contents, notes: list[str]) -> Hyperparameters | None:
    """The hyper-parameters of a file of a known family; else a note."""
    architecture = ARCHITECTURES.get(contents.architecture)
    if architecture is None:
        name = contents.architecture or "unknown"
        notes.append(f"state and activations of architecture {name} are not counted, only weights")
        return None
    return read_hyperparameters(architecture, contents)[0]


def _borrowed(trunk: Contents, draft: Contents | None) -> dict[str, int | None]:
    """What a sidecar without embeddings takes from its target, and the bytes of it where the target is known."""
    sidecar = draft if draft is not None else trunk
    if EMBEDDING in sidecar.tensors or not _has_head(sidecar):
        return {}
    names = [name for name in (EMBEDDING, OUTPUT) if name not in sidecar.tensors]
    if draft is None:
        return dict.fromkeys(names)
    return {name: trunk.tensors[name].nbytes for name in names if name in trunk.tensors}
