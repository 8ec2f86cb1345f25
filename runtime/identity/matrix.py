"""A matrix of checks: each cell is `nextn identity` in a process of its own, and what is done is not done again.

A cell's folder is named by what it is made of: settings, versions, and the hashes of its files. It is there when the
cell is done, and not before; so a run that was killed goes on where it was, and a file that changed is checked anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nextn.gguf_schema.errors import InputError, NextnError, UsageError
from nextn.gguf_schema.shards import open_gguf
from nextn.runtime.engines.llama_server import words_of
from nextn.runtime.identity.certificate import Certificate, load_certificate
from nextn.runtime.identity.checking import sha256_of, versions
from nextn.runtime.identity.executors import EXECUTORS, Ended
from nextn.runtime.identity.matrix_file import Cell, read_matrix
from nextn.runtime.identity.pairing import pairing
from nextn.runtime.identity.records import save_json

FORMAT = "nextn matrix 1"
CERTIFICATE, SUMMARY, CELLS = "certificate.json", "matrix.json", "cells"
BINARY = "llama-server="
COLUMNS = ("model", "type", "engine", "n_max", "verdict", "accepted", "head bytes", "")
Check = Callable[[Cell, Path], list[str]]


@dataclass(frozen=True)
class CellResult:
    """What came of a cell: done now, kept from before, or failed, with the reason; the certificate's main figures."""

    name: str
    type: str
    engine: str
    n_max: tuple[int, ...]
    status: str  # "done" | "kept" | "failed"
    message: str
    certificate: str | None = None
    verdict: str | None = None
    cause: str | None = None
    accept_rate: float | None = None
    head_bytes: int | None = None


@dataclass(frozen=True)
class MatrixResult:
    """The results of all cells, in the order of the matrix file."""

    cells: tuple[CellResult, ...]

    @property
    def ok(self) -> bool:
        """Whether every cell was checked and is identical."""
        return all(cell.verdict == "identical" for cell in self.cells)

    def as_json(self) -> dict[str, Any]:
        """The summary as `--json` prints it and as it is kept beside the cells."""
        return {"format": FORMAT, "ok": self.ok, "cells": [asdict(cell) for cell in self.cells]}

    def rows(self) -> list[tuple[str, ...]]:
        """The summary for people: a row for each cell, in the columns of `COLUMNS`."""
        rows: list[tuple[str, ...]] = []
        for cell in self.cells:
            rate = "" if cell.accept_rate is None else f"{cell.accept_rate:.1%}"
            verdict = (cell.verdict or "failed") + (f", {cell.cause}" if cell.cause else "")
            said = cell.message or ("kept" if cell.status == "kept" else "")
            lengths = ",".join(map(str, cell.n_max))
            rows.append((cell.name, cell.type, cell.engine, lengths, verdict, rate, str(cell.head_bytes or ""), said))
        return rows


def identity_command(cell: Cell, folder: Path) -> list[str]:
    """The command that checks a cell and leaves its certificate in a folder."""
    optional = {"-d": cell.draft, "--prompts": cell.prompts}
    return [
        *(sys.executable, "-P", "-m", "nextn", "identity", "--quiet"),
        *("-m", str(cell.model), "--engine", cell.engine, "--n-max", ",".join(map(str, cell.n_max))),
        *("-n", str(cell.n_predict), "-o", str(folder)),
        *(word for option, value in optional.items() if value for word in (option, str(value))),
    ]


def run_matrix(
    path: Path,
    out_dir: Path,
    executor: str = "process",
    jobs: int | None = None,
    note: Callable[[str], None] = lambda _: None,
    check: Check = identity_command,
) -> MatrixResult:
    """Check the cells of a matrix file, those that are not done yet, and leave certificates and a summary in a folder.

    `jobs` cells run at a time, by default one for each processor. A cell that fails stops no other. InputError for a
    matrix file that is none, and when nothing can be written; UsageError for an executor that there is not.
    """
    if executor not in EXECUTORS:
        raise UsageError("executor", f"is none of {', '.join(EXECUTORS)}", subject=f"--executor {executor}")
    cells = read_matrix(path)
    results: dict[int, CellResult] = {}
    waiting: list[tuple[int, Path]] = []
    hashed = cache(_hash_of_files)
    for place, cell in enumerate(cells):
        try:
            folder = out_dir.absolute() / CELLS / _folder_name(cell, hashed)
        except NextnError as error:
            results[place] = _failed(cell, str(error).replace("\n", "; "))
            continue
        kept = _kept(cell, folder)
        if kept is None:
            waiting.append((place, folder))
        else:
            results[place] = kept
    commands = [check(cells[place], _emptied(_partial(folder))) for place, folder in waiting]
    for ended in EXECUTORS[executor](commands, jobs or os.cpu_count() or 1):
        place, folder = waiting[ended.place]
        results[place] = _done(cells[place], folder, ended)
        note(
            f"{len(results)} of {len(cells)}: {cells[place].title}: {results[place].verdict or results[place].message}"
        )
    result = MatrixResult(tuple(results[place] for place in range(len(cells))))
    save_json(out_dir / SUMMARY, result.as_json())
    return result


def _folder_name(cell: Cell, hashed: Callable[[Path], str]) -> str:
    """A name that people recognise, and a digest of all that the cell is made of. InputError for a missing file."""
    files = [hashed(path) for path in (cell.model, cell.draft, cell.prompts) if path]
    if cell.engine.startswith(BINARY):
        program = words_of(cell.engine.removeprefix(BINARY))[0]
        files.append(hashed(Path(shutil.which(program) or program)))
    made_of = [cell.title, cell.engine, cell.n_max, cell.n_predict, files, versions()]
    digest = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', cell.title)[:80]}-{digest[:16]}"


def _hash_of_files(path: Path) -> str:
    """The digest of a file; of a model in shards, of all of them."""
    paths = open_gguf(path).paths if path.suffix == ".gguf" else (path,)
    return hashlib.sha256("".join(map(sha256_of, paths)).encode()).hexdigest()


def _partial(folder: Path) -> Path:
    return folder.with_name(folder.name + ".partial")


def _emptied(folder: Path) -> Path:
    """A folder without what an interrupted run left there; InputError when it cannot be made."""
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError("write-error", f"cannot be made: {error}", subject=str(folder)) from error
    return folder


def _kept(cell: Cell, folder: Path) -> CellResult | None:
    """The result of a cell that is done; None when it is not, or its certificate was damaged since."""
    try:
        return _told(cell, folder, load_certificate(folder / CERTIFICATE), "kept")
    except InputError:
        return None


def _done(cell: Cell, folder: Path, ended: Ended) -> CellResult:
    """The result of a cell whose command has ended: done when it left a whole certificate."""
    partial = _partial(folder)
    try:
        certificate = load_certificate(partial / CERTIFICATE)
        if folder.exists():
            shutil.rmtree(folder)
        partial.replace(folder)
    except InputError:
        said = [line for line in ended.said.splitlines() if line.strip()]
        return _failed(cell, "; ".join(said[-2:]) or f"left no certificate, exit status {ended.status}")
    except OSError as error:
        return _failed(cell, f"cannot be kept: {error}")
    return _told(cell, folder, certificate, "done")


def _told(cell: Cell, folder: Path, certificate: Certificate, status: str) -> CellResult:
    drafted = sum(each.total_draft for each in certificate.aggregate)
    accepted = sum(each.total_draft_accepted for each in certificate.aggregate)
    return CellResult(
        cell.name,
        cell.type,
        cell.engine,
        cell.n_max,
        status,
        "",
        str(folder / CERTIFICATE),
        certificate.verdict,
        certificate.cause,
        round(accepted / drafted, 4) if drafted else None,
        _head_bytes(cell),
    )


def _head_bytes(cell: Cell) -> int | None:
    """Bytes of the head's weights: beside acceptance they rank its types; None when it is not known."""
    try:
        head = pairing(cell.model, cell.draft).head
    except InputError:
        return None
    return sum(head.types.values()) if head else None


def _failed(cell: Cell, message: str) -> CellResult:
    return CellResult(cell.name, cell.type, cell.engine, cell.n_max, "failed", message)
