"""Files in memory, examined."""

from __future__ import annotations

from nextn.gguf_schema.contents import MemoryFile
from nextn.gguf_schema.shards import GGUFFile
from nextn.validators.container import examine_sources
from nextn.validators.findings import Finding, Findings


def examine(*files: bytes) -> tuple[GGUFFile | None, Findings]:
    names = [f"m-{i}" for i in range(len(files))] if len(files) > 1 else ["m"]
    found = examine_sources([MemoryFile(data, name) for data, name in zip(files, names, strict=True)])
    return found.file if found.whole else None, found.findings


def only(*files: bytes) -> Finding:
    _, findings = examine(*files)
    assert len(findings) == 1, findings
    return findings[0]
