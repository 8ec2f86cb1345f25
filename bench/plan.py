"""How long it takes to plan the conversion of GLM-5.3-Flash in FP8: 60 shards, 76,000 tensors, 155,000 tokens.

The shards in FOLDER have true headers, but their data is a hole: planning reads no payload.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from math import prod
from pathlib import Path

import asked
from checkpoints import SIZES, TINY, _grow_vocabulary

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from real_models import MODELS, in_fp8

SHARDS = 60
TIMES = 3
MODEL = MODELS["glm-5.3-flash"]


def write(folder: Path) -> int:
    """Write headers, index, configuration and a tokenizer of full length; the number of tensors."""
    folder.mkdir(parents=True)
    tensors = in_fp8(MODEL.tensors)
    names = list(tensors)
    per_shard = -(-len(names) // SHARDS)
    weight_map = {}
    for number in range(SHARDS):
        part = f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        entries, offset = {}, 0
        for name in names[number * per_shard : (number + 1) * per_shard]:
            dtype, shape = tensors[name]
            end = offset + prod(shape) * SIZES[dtype]
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
            offset = end
            weight_map[name] = part
        header = json.dumps(entries).encode()
        with (folder / part).open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + offset)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(MODEL.config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY["glm5-next"] / name, folder)
    config = {**MODEL.config, **MODEL.config.get("text_config", {})}
    _grow_vocabulary(folder / "tokenizer.json", config["vocab_size"])
    return len(names)


def main() -> None:
    parser = asked.parser(__doc__)
    parser.add_argument("folder", type=asked.new_folder, metavar="FOLDER", help="is made; it must not be there yet")
    folder = parser.parse_args().folder
    count = write(folder)
    command = [sys.executable, "-m", "nextn", "convert", str(folder), "-o", str(folder / "out"), "--dry-run"]
    command += ["--emit", "combined,trunk,mtp,mtp-shared"]
    taken = []
    for _ in range(TIMES):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start)
    print(f"{SHARDS} shards, {count} tensors: {min(taken):.2f} s (least of {TIMES})   {' '.join(command[1:])}")


if __name__ == "__main__":
    main()
