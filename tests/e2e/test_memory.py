"""Memory of the whole command on tensors larger than what it may take."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest
from checkpoints import model
from command import run

EXPERTS, HIDDEN, INNER = 8, 128, 1 << 20
LARGE = {
    "gate_proj": (EXPERTS, INNER, HIDDEN),
    "up_proj": (EXPERTS, INNER, HIDDEN),
    "down_proj": (EXPERTS, HIDDEN, INNER),
}


def write_large(folder: Path) -> Path:
    """The step35 fixture with one layer of experts, whose three tensors take 4 GiB each in a file of zeros."""
    copy = model("step35")
    copy.index = False
    dense = {name: tensor for name, tensor in copy.tensors.items() if name.startswith("model.layers.0.mlp.")}
    for layer in (2, 3):
        copy.drop(rf"layers\.{layer}\.(moe|share_expert)\.")
        copy.tensors |= {name.replace(".0.", f".{layer}."): tensor for name, tensor in dense.items()}
    copy.drop(r"layers\.4\.moe\.\w+_proj")
    copy.text["moe_layers_enum"] = "4"
    copy.text["moe_intermediate_size"] = INNER
    checkpoint = copy.write(folder)
    entries, end = {}, 0
    for name, shape in LARGE.items():
        begin, end = end, end + 4 * prod(shape)
        assert end - begin == 4 << 30
        entries[f"model.layers.4.moe.{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    with (checkpoint / "large.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)
    return checkpoint


@pytest.mark.long
def test_a_tensor_of_4_gib_takes_less_than_1_gib(tmp_path: Path) -> None:
    """Cases C25, C26 and C32."""
    arguments = ("convert", write_large(tmp_path), "-o", tmp_path / "out", "--no-mtp", "--outtype", "q8_0", "--json")
    done = run(*arguments, timeout=1800)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["bytes_read"] > 12 << 30
    assert shown["peak_rss_bytes"] < 1 << 30
    (output,) = shown["outputs"]
    assert output["bytes"] > 3 * (1 << 30) // 32 * 34
    Path(output["path"]).unlink()
