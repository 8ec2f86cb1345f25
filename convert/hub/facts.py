"""What a model card says of the files of a repository, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nextn.validators.runtimes import BUNDLED

RUNTIME = BUNDLED.name.replace("@", " ")
# What `loads` says when all is well; else what happens, and the runtime's words.
LOADS = "loads"


@dataclass(frozen=True)
class Target:
    """The model that a shared sidecar names, and the sha256 of its embeddings."""

    name: str
    embedding: str | None = None


@dataclass(frozen=True)
class Row:
    """A file: `path` in the repository; `loads` says what llama.cpp does with it; `first` of a set opens the model."""

    path: str
    bytes: int
    sha256: str
    role: str
    type: str
    loads: str
    first: bool = True
    target: Target | None = None


@dataclass(frozen=True)
class PairRow:
    """A model and a draft, by their paths, and what llama.cpp does with the two."""

    model: str
    draft: str
    loads: str


@dataclass(frozen=True)
class Proof:
    """What a certificate of `nextn identity` says, and about which files, by their sha256."""

    path: str
    verdict: str
    prompts: int
    n_max: tuple[int, ...]
    drafted: int
    accepted: int
    stream_sha256: str | None
    files: tuple[str, ...]


@dataclass(frozen=True)
class Base:
    """The checkpoint that the files were made from: a repository, and its commit where that is known."""

    id: str
    revision: str | None = None


@dataclass(frozen=True)
class Facts:
    """Everything that the card says."""

    rows: tuple[Row, ...] = ()
    pairs: tuple[PairRow, ...] = ()
    proofs: tuple[Proof, ...] = ()
    base: Base | None = None
    license: str | None = None

    def with_earlier(self, earlier: Facts, there: Mapping[str, str]) -> Facts:
        """These facts, and of earlier ones those about files that are still `there`: sha256 by path."""
        new = {row.path for row in self.rows}
        kept = tuple(row for row in earlier.rows if row.path not in new and there.get(row.path) == row.sha256)
        paths = new | {row.path for row in kept}
        sums = {row.sha256 for row in (*self.rows, *kept)}
        pairs = {(pair.model, pair.draft): pair for pair in (*earlier.pairs, *self.pairs)}
        proofs = {proof.path: proof for proof in (*earlier.proofs, *self.proofs)}
        return Facts(
            tuple(sorted((*self.rows, *kept), key=lambda row: row.path)),
            tuple(pairs[key] for key in sorted(pairs) if paths.issuperset(key)),
            tuple(proofs[path] for path in sorted(proofs) if sums.issuperset(proofs[path].files)),
            self.base or earlier.base,
            self.license or earlier.license,
        )
