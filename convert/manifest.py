"""The manifest of a run: what each file and each tensor was made of, and the hashes of the files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nextn import __version__
from nextn.convert.output import open_locked, partial_of, write_error
from nextn.convert.plan import Plan, PlannedFile
from nextn.convert.source_tensor import SourceTensor
from nextn.convert.transforms import Recipe


def hash_files(paths: Iterable[Path], jobs: int) -> dict[Path, str]:
    """The sha256 of files, in hexadecimal, read with `jobs` threads."""
    paths = list(paths)
    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip(paths, pool.map(_hash, paths), strict=True))


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest(plan: Plan, hashes: Mapping[Path, str]) -> dict[str, Any]:
    """The manifest as a JSON object; `hashes` gives the paths of the plan's files, in order, with their sha256."""
    return {
        "nextn": __version__,
        "files": [
            {
                "path": str(path),
                "role": file.role,
                "bytes": file.total_bytes,
                "sha256": digest,
                "tensors": tensors(file, plan.recipes),
            }
            for file, (path, digest) in zip(plan.files, hashes.items(), strict=True)
        ],
        **plan.as_json(),
    }


def tensors(file: PlannedFile, recipes: Mapping[str, Recipe]) -> list[dict[str, Any]]:
    """The tensors of a file: place and type, and the source tensors, files and transform that they are made by."""
    return [
        {
            "name": tensor.name,
            "ne": tensor.ne,
            "type": tensor.type.name,
            "offset": len(file.header) + tensor.offset,
            "bytes": tensor.nbytes,
            "transform": recipes[tensor.name].note,
            "sources": [
                _place(source) | {"scale": _place(source.scale) if source.scale else None}
                for source in recipes[tensor.name].sources
            ],
        }
        for tensor in file.tensors
    ]


def _place(source: SourceTensor) -> dict[str, Any]:
    return {
        "name": source.name,
        "file": source.source.name,
        "offset": source.offset,
        "dtype": source.dtype,
        "shape": source.shape,
    }


def write_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Write a manifest under another name and rename it; InputError when that fails."""
    partial = partial_of(path)
    try:
        # Escaped, for file names that are not UTF-8.
        with os.fdopen(open_locked(partial), "w", encoding="ascii") as file:
            file.truncate(0)
            file.write(json.dumps(content, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
            partial.replace(path)
    except OSError as error:
        raise write_error(path, error) from error
