"""Compile Triton kernels for GPUs that are not there, and tell what became of them.

A program of its own: python ahead_of_time.py CAPABILITY NAME... prints one JSON line for each build whose name begins
like one of the names. Run it without TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nextn.kernels.triton.builds import BUILDS
from nextn.kernels.triton.launch import OPTIONS, Build

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


def binary(build: Build, capability: int) -> Any:
    """A build for a compute capability such as 90."""
    source = ASTSource(build.kernel, build.signature, dict(build.constants))
    options = {"num_warps": build.warps, **OPTIONS}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def told(result: Any, tool: str, option: str) -> str:
    """What one of CUDA's tools says of a binary."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(result.asm["cubin"])
        file.flush()
        return subprocess.run([TOOLS / tool, option, file.name], capture_output=True, text=True, check=True).stdout


def compiled(build: Build, capability: int) -> dict[str, object]:
    """What a build takes of a GPU, and the layouts in which its threads sum."""
    result = binary(build, capability)
    usage = told(result, "cuobjdump", "-res-usage")
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    return {
        "name": build.name,
        "group": build.group,
        "hot": build.hot,
        "fuses": result.metadata.enable_fp_fusion,
        # Arguments that a launch would compile another binary for when they are 1 or multiples of 16.
        "specialized": [p.name for p in build.kernel.params if not (p.is_constexpr or _is_plain(p))],
        "registers": found["REG"],
        # Registers that spill go to the stack of a thread.
        "spilled": found["STACK"] + found["LOCAL"],
        "shared": result.metadata.shared,
        "layouts": _summed(result.asm["ttgir"]),
    }


def _is_plain(parameter: Any) -> bool:
    return parameter.do_not_specialize and parameter.do_not_specialize_on_alignment


def _summed(ttgir: str) -> list[str]:
    """The layouts of products of tiles, and of what reductions are of, and along which dimension they are."""
    named = dict(re.findall(r"^(#\w+) = (#ttg\.\S.*)$", ttgir, re.MULTILINE))
    products = [("product", type_) for type_ in re.findall(r"tt\.dot .* -> (tensor<.*>)", ttgir)]
    sums = re.findall(r"tt\.reduce\"\(.*?<\{axis = (\d+).*?\}\) : \((.*?)\) ->", ttgir, re.DOTALL)
    return sorted({f"{what} of {_layout(type_, named)}" for what, type_ in (*products, *sums)})


def _layout(type_: str, named: dict[str, str]) -> str:
    """How the values of a type such as tensor<4x8x128xf32, #blocked> lie among threads.

    What lies in the registers of one thread is not told: the rows do, whose number is what differs.
    """
    found = re.search(r"(#.*)>$", type_)
    layout = re.sub(r"#[a-z]+[0-9]*", lambda name: named.get(name[0], name[0]), found[1] if found else "")
    return re.sub(r"register = \[.*?\], (?=lane)", "", layout)


if __name__ == "__main__":
    capability, *names = sys.argv[1:]
    for build in BUILDS:
        if any(build.name.startswith(name) for name in names):
            sys.stdout.write(json.dumps(compiled(build, int(capability))) + "\n")
