"""A Hugging Face checkpoint, in a folder or on the hub: configuration and headers first, tensors lazily and by range.

Nothing here unpickles, imports code from the checkpoint or reads payload before a plan stands.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from nextn.convert.safetensors_header import Entry, parse_header, unique_names
from nextn.convert.source_tensor import SourceTensor
from nextn.gguf_schema.contents import ByteSource, LocalFile
from nextn.gguf_schema.errors import InputError, counted, listed
from nextn.validators.findings import Finding, Findings, Severity

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth")


@dataclass(frozen=True)
class Checkpoint:
    """What config.json, the index and the shard headers of a checkpoint say, with their disagreements as findings.

    `tensors` maps hub names to tensors in upstream's order: by file name, then by hub name. `missing` maps the names of
    tensors that the index lists but no header holds to the file that should hold them. `repository` is its name on the
    hub; `folder` then holds only what is no weights.
    """

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, SourceTensor]
    missing: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    repository: str | None = None

    @property
    def name(self) -> str:
        """The checkpoint for messages."""
        return self.repository or str(self.folder)

    @property
    def text_config(self) -> dict[str, Any]:
        """The configuration of the text model: `text_config` laid over the root."""
        text = self.config.get("text_config")
        return {**self.config, **text} if isinstance(text, dict) else dict(self.config)


class CheckpointFiles(Protocol):
    """Where the files of a checkpoint are: on disk, or on the hub under the name `repository`."""

    @property
    def folder(self) -> Path:
        """The folder that holds all files that are no weights."""
        ...

    @property
    def repository(self) -> str | None:
        """The name on the hub; None for a folder of the user's."""
        ...

    def parts(self) -> set[str]:
        """The names of the .safetensors files; InputError when one of them is no file."""
        ...

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        ...

    def open(self, parts: Iterable[str]) -> dict[str, ByteSource]:
        """The weight files of these names, ready to have their headers read."""
        ...


@dataclass(frozen=True)
class LocalFiles:
    """A checkpoint in a folder."""

    folder: Path
    repository: str | None = None

    def parts(self) -> set[str]:
        """The names of the .safetensors files; InputError for a name that is of no file."""
        found = list(self.folder.glob("*.safetensors"))
        if odd := sorted(path for path in found if not path.is_file()):
            gone = odd[0].is_symlink() and not odd[0].exists()
            what = "is a link to a file that is not there" if gone else "is no file"
            raise InputError(
                "not-a-shard", what, subject=str(odd[0]), remedy="download it again, or remove it if it does not belong"
            )
        return {path.name for path in found}

    def has(self, name: str) -> bool:
        """Whether there is a file, or anything else, of this name."""
        return (self.folder / name).exists()

    def open(self, parts: Iterable[str]) -> dict[str, ByteSource]:
        """The files of these names."""
        return {part: LocalFile(self.folder / part) for part in parts}


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; InputError when it is missing, unreadable, no object, or names something twice."""
    if path.exists() and not path.is_file():
        raise InputError("unreadable", "is not a regular file", subject=str(path))
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique_names)
    except FileNotFoundError as error:
        raise InputError("no-file", "is missing", subject=str(path)) from error
    except OSError as error:
        raise InputError("unreadable", f"cannot be read: {error.strerror}", subject=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise InputError("bad-json", f"is not valid JSON: {error}", subject=str(path)) from error
    if not isinstance(content, dict):
        raise InputError("bad-json", "holds no JSON object", subject=str(path))
    return cast(dict[str, Any], content)


def shown(value: object) -> str:
    """A value for messages, cut short before it is spelled out: a short file can hold a very long one."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 2, 60, 60
    try:
        return short.repr(value)[:120]
    except ValueError:
        return "a very long number"


def open_checkpoint(place: Path | CheckpointFiles) -> Checkpoint:
    """Read configuration, index and all shard headers of a checkpoint; about 100 KB per shard.

    Raises InputError when the configuration or every weight file is missing, or when a header is damaged.
    """
    files = LocalFiles(place) if isinstance(place, Path) else place
    folder, name = files.folder, files.repository or str(files.folder)
    if not (folder / CONFIG).is_file():
        raise InputError(
            "no-config",
            "no config.json: this is no checkpoint",
            subject=name,
            remedy="give the folder, or the repository, that holds config.json and the .safetensors files",
        )
    config = read_json(folder / CONFIG)
    weight_map = _weight_map(folder)
    present = files.parts()
    parts = _part_names(files, name, present, weight_map)
    opened = files.open(part for part in parts if part in present)
    headers = {part: (source, parse_header(source)) for part, source in opened.items()}
    return Checkpoint(folder, config, *_join_index(weight_map, headers), files.repository)


def _weight_map(folder: Path) -> dict[str, str]:
    if not (folder / INDEX).is_file():
        return {}
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(part, str) for part in weight_map.values()):
        raise InputError("bad-index", "`weight_map` is not an object of file names", subject=str(folder / INDEX))
    for part in set(weight_map.values()):
        if Path(part).name != part or part in ("", ".."):
            message = f"names {part!r}, which is not a file of this folder"
            raise InputError("bad-index", message, subject=str(folder / INDEX))
    return weight_map


def _part_names(
    files: CheckpointFiles, name: str, present: Collection[str], weight_map: Mapping[str, str]
) -> list[str]:
    if not present and any(files.has(pickled) for pickled in PICKLES):
        raise InputError(
            "pickle",
            "holds only pickled weights, which are never loaded",
            subject=name,
            remedy="convert them to safetensors first, or use the repository's safetensors revision",
        )
    if not weight_map and not present:
        raise InputError("no-weights", "holds no .safetensors file", subject=name)
    if not weight_map:
        _refuse_gaps(name, present)
    return sorted({*present, *weight_map.values()})


NUMBERED = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")


def _refuse_gaps(checkpoint: str, names: Iterable[str]) -> None:
    """Without an index the names of shards alone tell that one is missing."""
    numbered = [match.groups() for name in names if (match := NUMBERED.fullmatch(name))]
    for stem, count in {(stem, count) for stem, _, count in numbered}:
        there = {number for s, number, c in numbered if (s, c) == (stem, count)}
        missing = [
            f"{stem}-{n:05d}-of-{count}.safetensors" for n in range(1, int(count) + 1) if f"{n:05d}" not in there
        ]
        if missing:
            raise InputError(
                "missing-shard",
                f"{counted(len(missing), 'shard')} of {int(count)} not there: {listed(missing)}",
                subject=checkpoint,
                remedy=f"download what is missing, and {INDEX}",
            )


def _join_index(
    weight_map: Mapping[str, str], headers: Mapping[str, tuple[ByteSource, Mapping[str, Entry]]]
) -> tuple[dict[str, SourceTensor], dict[str, str], tuple[Finding, ...]]:
    """Join index and headers: the headers decide, every disagreement becomes a finding."""
    holders: dict[str, list[str]] = {}
    for part, (_, entries) in headers.items():
        for name in entries:
            holders.setdefault(name, []).append(part)
    findings = Findings()
    chosen = {name: _chosen(name, parts, weight_map.get(name), findings) for name, parts in holders.items()}
    tensors = {}
    for part, (source, entries) in headers.items():
        if unlisted := sorted(name for name in entries if weight_map and name not in weight_map):
            findings.append(_unlisted(part, unlisted))
        for name in sorted(entries):
            if chosen[name] == part:
                entry = entries[name]
                tensors[name] = SourceTensor(name, entry.dtype, entry.shape, source, entry.offset)
    missing = {name: part for name, part in weight_map.items() if name not in tensors}
    for part in sorted(set(missing.values())):
        findings.append(_missing_part(part, sorted(n for n, p in missing.items() if p == part), part in headers))
    return tensors, missing, tuple(findings)


def _chosen(name: str, parts: list[str], listed: str | None, findings: Findings) -> str:
    """The part to take a tensor from: the one that the index names if it holds the tensor, else the only one."""
    if listed in parts:
        if others := [part for part in parts if part != listed]:
            message = f"is in {', '.join(others)} too, but the index takes it from {listed}; that one is used"
            findings.warn("index-other-part", name, message)
        return listed
    if len(parts) > 1:
        raise InputError(
            "duplicate-tensor",
            f"is in both {parts[0]} and {parts[1]}, and no index says which one is meant",
            subject=name,
            remedy=f"remove the file that does not belong, or restore {INDEX}",
        )
    if listed is not None:
        message = f"is in {parts[0]}, where the index does not look for it ({listed} lacks it); it is used"
        findings.warn("index-other-part", name, message)
    return parts[0]


def _unlisted(part: str, names: list[str]) -> Finding:
    return Finding(
        Severity.WARNING,
        "index-lacks-tensors",
        part,
        f"holds {counted(len(names), 'tensor')} that the index does not list ({listed(names)}); they are used",
        f"rebuild {INDEX} if they do not belong to the model",
    )


def _missing_part(part: str, names: list[str], there: bool) -> Finding:
    tensors = counted(len(names), "tensor")
    message = f"lacks {tensors} that the index expects from it" if there else f"is not there, with {tensors}"
    return Finding(Severity.WARNING, "missing-tensors", part, f"{message}: {listed(names)}", f"download {part} again")
