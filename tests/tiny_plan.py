"""A plan of two small files, one with the hash of the other's tensor; and what becomes of it when it is interrupted.

`python tiny_plan.py FOLDER HOW` interrupts writing it at every call in turn, continues, and prints what was seen.
With a third argument an earlier run was interrupted in the middle, and one of its partial files is lost.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from interrupted import PUTS, Striker, calls, hashes

from nextn.convert.journal import Journal
from nextn.convert.plan import Payload, Plan, hash_placeholder, plan_file
from nextn.convert.source_tensor import SourceTensor
from nextn.convert.transforms import add_one, copy
from nextn.convert.writer import write_plan
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.contents import LocalFile, TensorInfo, string
from nextn.gguf_schema.errors import NextnError
from nextn.gguf_schema.types import BF16, F32, Q8_0

SHAPE = (12, 64)
NAMES = [f"tensor.{i}" for i in range(4)]


def write_source(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).standard_normal((4, *SHAPE), dtype="<f4").tobytes())


def tiny_plan(source: Path) -> Plan:
    """Four tensors in one file, two of them in a second one in a folder of its own, with the hash of a third."""
    file = LocalFile(source)
    size = SHAPE[0] * SHAPE[1] * 4
    tensors = [SourceTensor(f"source.{i}", "F32", SHAPE, file, i * size) for i in range(4)]
    makers = (copy, copy, add_one, copy)
    payload = []
    for i, (tensor, maker, type_) in enumerate(zip(tensors, makers, (F32, BF16, F32, Q8_0), strict=True)):
        info = TensorInfo(f"tensor.{i}", SHAPE[::-1], type_, type_.tensor_bytes(SHAPE[::-1]))
        payload.append(Payload(info, maker(tensor)))
    infos = [p.info for p in payload]
    keys = {"general.architecture": string("toy")}
    marked = {**keys, "hash": string(hash_placeholder("tensor.1"))}
    return Plan(
        (
            plan_file(Role.COMBINED, PurePosixPath("toy.gguf"), keys, infos),
            plan_file(Role.MTP_SHARED, PurePosixPath("shared/toy.gguf"), marked, infos[2:], ["tensor.1"]),
        ),
        tuple(payload),
    )


def interrupted(plan: Plan, out: Path, monkeypatch: pytest.MonkeyPatch, after: int = 2) -> None:
    """An earlier run that got as far as `after` finished tensors."""
    done = Journal.done
    count = 0

    def dying(self: Journal, *arguments: Any) -> None:
        nonlocal count
        done(self, *arguments)
        count += 1
        if count == after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "done", dying)
        with pytest.raises(KeyboardInterrupt):
            write_plan(plan, out, jobs=1)


def forked(plan: Plan, out: Path, how: str, at: int, log: Path) -> tuple[int, str]:
    """Write the plan in a forked process that is struck: the signal that ended it, or 0, and the code of its error."""
    told = log.with_suffix(".error")
    told.write_text("")
    process = os.fork()
    if process == 0:
        try:
            Striker(how, at, log)
            write_plan(plan, out, jobs=2)
        except NextnError as error:
            told.write_text(error.code)
        except BaseException as error:
            told.write_text(repr(error))
        os._exit(0)
    _, status = os.waitpid(process, 0)
    return (os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0), told.read_text()


def main(folder: Path, how: str, lost: bool) -> None:
    source, log = folder / "source", folder / "log"
    write_source(source)
    plan = tiny_plan(source)
    forked(plan, folder / "whole", how, -1, log)
    seen: dict[str, Any] = {"calls": calls(log), "whole": hashes(folder / "whole"), "struck": []}
    middle = [name for name, _ in seen["calls"]].index("fsync")
    for at in range(len(seen["calls"])):
        out = folder / str(at)
        if lost:
            forked(plan, out, "kill", middle, log)
            (out / "shared" / "toy.gguf.partial").unlink()
        ended, error = forked(plan, out, how, at, log)
        assert error or ended == signal.SIGKILL, "it was not struck"
        after = hashes(out)
        finished = (out / "toy.gguf.journal").read_text().count("done") if "toy.gguf.journal" in after else 0
        resumed, failed = forked(plan, out, how, -1, log)
        written = sum(size for name, size in calls(log) if name in PUTS)
        seen["struck"].append(
            {
                "at": at,
                "error": error,
                "after": after,
                "finished": finished,
                "resumed": [resumed, failed],
                "written": written,
                "end": hashes(out),
            }
        )
    seen["source"] = hashes(folder)["source"]
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], lost=len(sys.argv) > 3)
