"""What the fake hub holds: repositories with commits, files with their hashes, and the objects of large files."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

# As the hub's own .gitattributes has it.
LARGE = (".gguf", ".safetensors", ".bin")
HASHED_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Blob:
    """The content of a file: bytes in memory, or a file on disk of which ranges are read."""

    content: bytes | Path

    @cached_property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`."""
        if isinstance(self.content, bytes):
            return self.content[start:end]
        with self.content.open("rb") as file:
            file.seek(start)
            return file.read(end - start)

    @cached_property
    def sha256(self) -> str:
        """The sha256 in hexadecimal."""
        return self._hash(hashlib.sha256())

    @cached_property
    def git_oid(self) -> str:
        """The name of the content in git."""
        return self._hash(hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False))

    def _hash(self, digest: hashlib._Hash) -> str:
        for start in range(0, self.size, HASHED_AT_ONCE):
            digest.update(self.read(start, start + HASHED_AT_ONCE))
        return digest.hexdigest()


@dataclass(frozen=True)
class StoredFile:
    """A file of a commit; a large one is kept as an object, and the hub gives its sha256."""

    blob: Blob
    large: bool

    @property
    def etag(self) -> str:
        """The hash that the hub gives for the file."""
        return self.blob.sha256 if self.large else self.blob.git_oid


# What a commit can put at a path; None removes what is there.
Content = bytes | Path | StoredFile | None


@dataclass(frozen=True)
class Commit:
    """The files of a repository at one time, by their paths."""

    files: Mapping[str, StoredFile]
    parent: str | None = None
    message: str = ""
    id: str = field(default_factory=lambda: secrets.token_hex(20))


@dataclass
class Repository:
    """A repository: its commits, and the refs that name some of them (`main`, `refs/pr/1`, tags).

    Of a private one only its `readers`, names of users, can see anything; of a gated one they alone can read files.
    """

    name: str
    commits: dict[str, Commit] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False
    readers: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Begin with an empty commit, as the hub does."""
        if not self.refs:
            self.add(Commit({}, None, "initial commit"), "main")

    def add(self, commit: Commit, ref: str) -> Commit:
        """Add a commit and let a ref name it."""
        self.commits[commit.id] = commit
        self.refs[ref] = commit.id
        return commit

    def resolve(self, revision: str) -> Commit | None:
        """The commit of a ref's name or of its own id."""
        return self.commits.get(self.refs.get(revision, revision))

    def head(self, ref: str = "main") -> Commit:
        """The commit that a ref names."""
        return self.commits[self.refs[ref]]

    def put(
        self, files: Mapping[str, bytes | Path | StoredFile | None], ref: str = "main", message: str = ""
    ) -> Commit:
        """Commit changed files (None removes one) on a ref, which begins at `main` when it is new."""
        parent = self.head(ref if ref in self.refs else "main")
        changed = dict(parent.files)
        for path, content in files.items():
            if content is None:
                changed.pop(path, None)
            elif isinstance(content, StoredFile):
                changed[path] = content
            else:
                changed[path] = StoredFile(Blob(content), path.endswith(LARGE))
        return self.add(Commit(changed, parent.id, message), ref)

    def put_folder(self, folder: Path, ref: str = "main") -> Commit:
        """Commit every file under a folder."""
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return self.put({path.relative_to(folder).as_posix(): path for path in paths}, ref)


@dataclass
class Store:
    """All repositories by name, uploaded large objects by sha256, and the users by their tokens."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, Blob] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def create(self, name: str, *, private: bool = False, gated: bool = False) -> Repository:
        """A new repository."""
        with self.lock:
            repository = Repository(name, private=private, gated=gated)
            self.repositories[name] = repository
            return repository
