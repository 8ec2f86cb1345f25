"""GGUF files that gguf-py's writer makes of others: as forks name and cut things; no code of ours is used.

The names are those of section 6.5 of qwen4exp.md, and the keys those of section 8 of glm5-next.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

# A value, a function of the old one, or None to leave the key out.
Change = Any
# Rows of a tensor as bytes or numbers, slowest dimension first.
Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class Hand:
    """What is different: names of tensors, matrices that are cut in two along their rows, other dimensions, keys.

    `b` in names stands for `blk.N.nextn` of the head. `tensors` are functions of a tensor's rows, whose result may be
    of another of the `types`; `without` are beginnings of names. `renumbered` gives a block another number. Keys are
    without the architecture; `moved` gives them other names, `behind` puts new ones (U32) behind another: there a name
    after `=` is a key's whole name.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    halves: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    tensors: Mapping[str, Callable[[Rows], Rows]] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    keys: Mapping[str, Change] = field(default_factory=dict)
    moved: Mapping[str, str] = field(default_factory=dict)
    behind: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    architecture: str | None = None
    renumbered: tuple[int, int] | None = None


def last(value: int) -> Callable[[list[int]], list[int]]:
    """Another last entry of an array."""
    return lambda old: [*old[:-1], value]


def streams(rows: Rows) -> Rows:
    """A gamma with a dimension for the streams, of which the tiny model has four."""
    return rows.reshape(4, -1)


RATIOS = "attention.compress_ratios"
EH_PROJ = "b.eh_proj.weight"


def mixer(name: str) -> dict[str, str]:
    return {f"b.hc_head_{part}.weight": name.format(part) for part in ("norm", "down", "up")}


FORKS: dict[str, Hand] = {
    "pull-request": Hand(keys={RATIOS: last(0)}, moved={"nextn.shared": "nextn_shared_target_tensors"}),
    "rocmfpx": Hand(mixer("output_hc_{}.weight"), keys={RATIOS: last(0)}),
    "split-fc": Hand(
        mixer("b.hc_{}.weight"), {EH_PROJ: ("b.fc_embd.weight", "b.fc_hidden.weight")}, keys={RATIOS: last(0)}
    ),
    "split-proj": Hand(halves={EH_PROJ: ("b.embed_proj.weight", "b.hidden_proj.weight")}),
    "ik-llama": Hand(mixer("output_hc_{}.weight") | {"b.hc_head_norm.weight": "b.shared_head_norm.weight"}),
    "ik-llama-split": Hand(
        mixer("mtp.mixer_{}.weight")
        | {"b.enorm.weight": "mtp.pre_norm_embd.weight", "b.hnorm.weight": "mtp.pre_norm_hidden.weight"},
        {EH_PROJ: ("mtp.fc_embd.weight", "mtp.fc_hidden.weight")},
    ),
    "hf": Hand(
        {
            "b.enorm.weight": "mtp.pre_fc_norm_embedding.weight",
            "b.hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
            "b.hc_head_norm.weight": "mtp.hyper_connection_mixer.hc_norm.weight",
            "b.hc_head_down.weight": "mtp.hyper_connection_mixer.input_mix_weight_down.weight",
            "b.hc_head_up.weight": "mtp.hyper_connection_mixer.input_mix_weight_up.weight",
        },
        {EH_PROJ: ("mtp.fc_embedding.weight", "mtp.fc_hidden.weight")},
    ),
    "matrix-gammas": Hand(tensors={"b.hnorm.weight": streams, "b.hc_head_norm.weight": streams}),
}
LETTERS = {"pull-request": "A", "rocmfpx": "B", "split-fc": "C", "split-proj": "D", "ik-llama": "E1"}
LETTERS |= {"ik-llama-split": "E2", "hf": "HF"}
# What cannot be in a file with a trunk: it would overwrite the trunk's mixer.
HEAD_ALONE = ("rocmfpx", "ik-llama")
# Files before llama.cpp merged the architecture; the width is that of the shared expert's matrices.
OLD_GLM = Hand(
    keys={"attention.indexer.kpool_select_tail": None, "attention.indexer.types": None},
    moved={"attention.indexer.kpool": "attention.indexer.block_size"},
    behind={"expert_feed_forward_length": ("expert_shared_feed_forward_length", 64)},
    architecture="glm5next",
)


def by_hand(source: Path, target: Path, hand: Hand) -> Path:
    """Write a file anew with what is different; returns its path."""
    reader = gguf.GGUFReader(source)
    head = next((".".join(tensor.name.split(".")[:3]) for tensor in reader.tensors if ".nextn." in tensor.name), "none")
    target.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(target, hand.architecture or reader.fields["general.architecture"].contents())
    _write_keys(writer, reader, hand)
    for tensor in reader.tensors:
        short, rows = tensor.name.replace(head, "b"), tensor.data
        if hand.without and (short.startswith(hand.without) or tensor.name.startswith(hand.without)):
            continue
        if short in hand.halves:
            parts = list(zip(hand.halves[short], np.split(rows, 2, axis=-1), strict=True))
        else:
            parts = [(hand.names.get(short, short), hand.tensors.get(short, lambda same: same)(rows))]
        for name, part in parts:
            full = f"{head}{name[1:]}" if name.startswith("b.") else name
            if hand.renumbered:
                full = full.replace(f"blk.{hand.renumbered[0]}.", f"blk.{hand.renumbered[1]}.")
            type_ = gguf.GGMLQuantizationType[hand.types[short]] if short in hand.types else tensor.tensor_type
            writer.add_tensor(full, np.ascontiguousarray(part), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _write_keys(writer: gguf.GGUFWriter, reader: gguf.GGUFReader, hand: Hand) -> None:
    new = f"{writer.arch}."
    old = f"{reader.fields['general.architecture'].contents()}." if "general.architecture" in reader.fields else new
    for key, held in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        short, value = key.removeprefix(old), held.contents()
        if short in hand.keys:
            change = hand.keys[short]
            value = change(value) if callable(change) else change
        if value is not None:
            name = _full(hand.moved.get(short, short if short != key or key in hand.moved else f"={key}"), new)
            writer.add_key_value(name, value, held.types[0], held.types[-1] if len(held.types) > 1 else None)
        if short in hand.behind:
            name, number = hand.behind[short]
            writer.add_uint32(_full(name, new), number)


def _full(name: str, prefix: str) -> str:
    return name[1:] if name.startswith("=") else prefix + name
