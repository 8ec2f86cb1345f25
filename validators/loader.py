"""llama.cpp's loader, re-enacted on contents: the order in which it reads keys and asks for tensors, as data.

It says only what it meets first, so a forecast has to walk the same way: keys, vocabulary, tensors, their count.
Source: src/llama-model.cpp and src/llama-model-loader.cpp of llama.cpp b11549, as bundled with xllamacpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from math import prod
from typing import Any

from nextn.gguf_schema.architecture import Architecture, Hyperparameters, Rule, TensorSpec, Without
from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.nextn_generic import BLOCK_COUNT, EH_PROJ, NEXTN_PREDICT_LAYERS, TOKENS, block_indices
from nextn.validators.loader_keys import Check, Read, Stop, Values, read_general, read_keys, refuse
from nextn.validators.loader_vocabulary import MODEL, WITHOUT_TOKENS, vocabulary_problem


@dataclass(frozen=True)
class Group:
    """Tensors that may be stored as one, joined along their rows; where the block is skipped none of them is missed."""

    joined: str
    parts: tuple[str, ...]
    biases: bool = False


Dimensions = Callable[[Any, Values], tuple[int, ...]]
Condition = Callable[[Any, int], bool]


@dataclass(frozen=True)
class Loader:
    """How one architecture is loaded: what is read and asked for, in order.

    `outside` and `block` name tensors, those of blocks without `blk.{i}.`; the tables of the architecture say the rest:
    dimensions, whether a file may lack them. `always` are wanted whatever the probe of block 0 says. `broader` gives,
    for conditions of the tables, those under which the loader asks for a tensor, though it can do without. `dims` are
    dimensions that it computes in another way. Without `probes` it forgives nothing; with `whole_trunk_probe` it looks
    for any block of the trunk, not for one tensor; without `heads` it does not ask for the heads' blocks.
    `borrows` makes a file without the trunk load without embeddings and output, which its target lends.
    """

    architecture: Architecture
    reads: tuple[Read | Check, ...]
    outside: tuple[str, ...]
    block: tuple[str | Group, ...]
    always: frozenset[str]
    probe: str = "attn_norm.weight"
    broader: Mapping[Condition, Condition] = field(default_factory=dict)
    dims: Mapping[str, Dimensions] = field(default_factory=dict)
    probes: bool = True
    whole_trunk_probe: bool = False
    heads: bool = True
    borrows: bool = False


@dataclass(frozen=True)
class Loaded:
    """A file that was loaded: what was read, the flags, and the names of the tensors in memory.

    `loader` is None for an architecture without tables, of which only the common keys were read.
    """

    loader: Loader | None
    contents: Contents
    values: Values
    h: Any = None
    mtp_only: bool = False
    trunk_only: bool = False
    tensors: frozenset[str] = frozenset()

    @property
    def nextn(self) -> int:
        """Number of heads that the file declares."""
        return int(self.values[NEXTN_PREDICT_LAYERS])

    @property
    def trunk(self) -> range:
        """Blocks that the loader takes for the trunk."""
        return range(self.values[BLOCK_COUNT] - self.nextn)

    @property
    def heads(self) -> range:
        """Blocks that the loader takes for heads."""
        return range(len(self.trunk), self.values[BLOCK_COUNT])

    def has(self, block: int, name: str) -> bool:
        """Whether a tensor of a block is in memory."""
        return f"blk.{block}.{name}" in self.tensors


def load(loader: Loader, contents: Contents, *, mtp: bool) -> Loaded | Stop:
    """Load a file, its heads too when `mtp`, or say where the loader stops."""
    values: Values = {}
    for stop in (read_general(contents), read_keys(contents, loader.reads, values), vocabulary_problem(contents)):
        if stop:
            return stop
    asking = _Asking(loader, contents, values, mtp)
    try:
        asking.run()
    except ValueError as error:
        return refuse(str(error))
    return Loaded(loader, contents, values, asking.h, asking.mtp_only, asking.trunk_only, frozenset(asking.tensors))


def hyperparameters(architecture: Architecture, contents: Contents, values: Values) -> Hyperparameters:
    """What was read as hyper-parameters; of arrays where the tables have one value, the first block's counts."""
    single = {spec.field for spec in architecture.keys if spec.rule is Rule.SCALAR}
    held: Values = {entry.name: 0 for entry in fields(architecture.hyperparameters)}
    held |= architecture.from_tensors(contents)
    for key, value in values.items():
        name = key.replace(".", "_")
        if name in held:
            first_only = name in single and isinstance(value, tuple)
            held[name] = (value[0] if value else 0) if first_only else value
    tokens, model = contents.keys.get(TOKENS), contents.keys.get(MODEL)
    no_vocabulary = model is not None and model.value in WITHOUT_TOKENS
    held |= {
        "trunk_blocks": values[BLOCK_COUNT] - values[NEXTN_PREDICT_LAYERS],
        "nextn_blocks": values[NEXTN_PREDICT_LAYERS],
        "vocab_size": values.get("vocab_size", 0) if no_vocabulary or not tokens else len(tokens.items),
    }
    return architecture.hyperparameters(**held)


# Weights of a block that may have a scale of their own, and those with one for each expert.
_NAMES = """
attn_q attn_k attn_v attn_output attn_qkv attn_gate ffn_gate ffn_down ffn_up ffn_gate_shexp ffn_down_shexp ffn_up_shexp
ssm_in ssm_out ssm_alpha ssm_beta nextn.eh_proj nextn.shared_head_head
"""
_SCALED = frozenset(_NAMES.split())
_SCALED_BY_EXPERT = frozenset({"ffn_gate_exps", "ffn_down_exps", "ffn_up_exps"})


class _Asking:
    """One walk through the tensors; ValueError, in the loader's words, at the first that it does not get."""

    def __init__(self, loader: Loader, contents: Contents, values: Values, mtp: bool) -> None:
        self.loader, self.contents, self.values, self.mtp = loader, contents, values, mtp
        self.h: Any = hyperparameters(loader.architecture, contents, values)
        self.tensors: set[str] = set()
        self.made = 0
        self.specs: dict[str, list[TensorSpec]] = {}
        for spec in loader.architecture.tensors:
            self.specs.setdefault(spec.name.removeprefix("blk.{i}."), []).append(spec)
        heads, trunk = values[NEXTN_PREDICT_LAYERS], values[BLOCK_COUNT] - values[NEXTN_PREDICT_LAYERS]
        look = loader.probes and heads > 0
        self.mtp_only = look and f"blk.0.{loader.probe}" not in contents.tensors
        if loader.whole_trunk_probe:
            self.mtp_only = look and all(i >= trunk for i in block_indices(contents))
        self.trunk_only = look and f"blk.{trunk}.{EH_PROJ}" not in contents.tensors
        self.trunk, self.blocks = trunk, trunk + heads if loader.heads else trunk

    def run(self) -> None:
        """Ask for everything, and count."""
        for name in self.loader.outside:
            self._ask_one(name, -1)
        for i in range(self.blocks):
            for row in self.loader.block:
                if isinstance(row, str):
                    self._ask_one(row, i)
                else:
                    self._ask_group(row, i)
        # Beside each weight; without any in the file the answers are known.
        if any(name.endswith((".scale", ".input_scale")) for name in self.contents.tensors):
            for i in range(self.blocks):
                self._ask_scales(i)
        total = len(self.contents.tensors)
        if self.made < total:
            raise ValueError(f"done_getting_tensors: wrong number of tensors; expected {total}, got {self.made}")

    def _spec(self, name: str, i: int) -> TensorSpec | None:
        """The specification of a tensor that this block is asked for."""
        for spec in self.specs[name]:
            if self.loader.broader.get(spec.when, spec.when)(self.h, i):
                return spec
        return None

    def _required(self, name: str, spec: TensorSpec, i: int) -> bool:
        if spec.optional or spec.without is not Without.REFUSES or not spec.when(self.h, i):
            return False
        lent = self.loader.borrows and self.mtp_only
        if name in self.loader.always:
            return not lent
        return not (self.trunk_only if i >= self.trunk else self.mtp_only)

    def _skips(self, i: int) -> bool:
        return i >= self.trunk and not self.mtp

    def _want(self, name: str, spec: TensorSpec, i: int) -> tuple[int, ...]:
        dims = self.loader.dims.get(name)
        return dims(self.h, self.values) if dims else spec.ne(self.h, i)

    def _ask_one(self, name: str, i: int) -> None:
        spec = self._spec(name, i if not name.startswith("rope_freqs") else -1)
        if spec is None:
            return
        full = spec.name.format(i=i)
        if not spec.per_block and i > 0:
            return  # one for all blocks, asked for with the first
        self._ask(full, self._want(name, spec, i), spec, required=self._required(name, spec, i), skip=self._skips(i))

    def _ask_group(self, group: Group, i: int) -> None:
        specs = [self._spec(part, i) for part in group.parts]
        found = [(part, spec) for part, spec in zip(group.parts, specs, strict=True) if spec]
        if not found:
            return
        wants = [self._want(part, spec, i) for part, spec in found]
        joined = (wants[0][0], sum(want[1] for want in wants), *wants[0][2:])
        skip = self._skips(i)
        block = f"blk.{i}."
        together = self._ask(f"{block}{group.joined}", joined, None, required=False, skip=skip)
        for (part, spec), want in zip(found, wants, strict=True):
            if not together or skip:
                required = not skip and self._required(part, spec, i)
                self._ask(f"{block}{part}", want, spec, required=required, skip=skip)
            if group.biases:
                bias = f"{block}{part.removesuffix('weight')}bias"
                self._ask(bias, want[1:], None, required=False, skip=skip)

    def _ask_scales(self, i: int) -> None:
        for name in [name for name in self.tensors if name.startswith(f"blk.{i}.") and name.endswith(".weight")]:
            base = name.removesuffix(".weight")
            suffix = base.removeprefix(f"blk.{i}.")
            if suffix in _SCALED or suffix in _SCALED_BY_EXPERT:
                want = (self.h.expert_count,) if suffix in _SCALED_BY_EXPERT else (1,)
                for kind in ("scale", "input_scale"):
                    self._ask(f"{base}.{kind}", want, None, required=False)

    def _ask(
        self, name: str, want: tuple[int, ...], spec: TensorSpec | None, *, required: bool, skip: bool = False
    ) -> bool:
        """Ask for a tensor; whether it is in the file."""
        info = self.contents.tensors.get(name)
        if info is None:
            if required:
                raise ValueError(f"check_tensor_dims: tensor '{name}' not found")
            return False
        if info.ne != want and not _fits(info.ne, want, reshape=spec is not None and spec.reshape):
            got = info.ne + (1,) * (4 - len(info.ne))
            shapes = (", ".join(f"{dim:6}" for dim in dims) for dims in (want, got))
            raise ValueError(
                "check_tensor_dims: tensor '{}' has wrong shape; expected {}, got {}".format(name, *shapes)
            )
        self.made += 1
        if not skip:
            self.tensors.add(name)
        return True


def _fits(got: tuple[int, ...], want: tuple[int, ...], *, reshape: bool) -> bool:
    """Whether a tensor may be taken for one of other dimensions; those of 1 at the end do not count."""
    if reshape:
        return prod(got) == prod(want)
    ones = (1, 1, 1, 1)
    return (*got, *ones)[:4] == (*want, *ones)[:4]


def missing(loaded: Loaded, blocks: range, *, outside: bool = False) -> Iterator[tuple[str, TensorSpec]]:
    """Tensors that the tables want in these blocks (and outside of blocks) and that are not in memory."""
    for spec in loaded.loader.architecture.tensors if loaded.loader else ():
        for i in blocks if spec.per_block else ((-1,) if outside else ()):
            name = spec.name.format(i=i)
            if not spec.optional and name not in loaded.tensors and spec.when(loaded.h, i):
                yield name, spec
