"""Which files of a repository llama.cpp takes for `-hf org/name[:tag]`: by their names and the order of the listing.

Source: common/download.cpp of llama.cpp b11549 (the functions are named in `RULES`), common/arg.cpp for what is asked
for, common/hf-cache.cpp for the listing, of which only the first page is read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

SOURCE = "common/download.cpp of llama.cpp b11549"
# What decides, as documentation and messages give it: the function there, and its rule.
RULES: tuple[tuple[str, str], ...] = (
    ("common_download_get_hf_plan", "a preset.ini at the root is taken alone"),
    ("gguf_filename_is_model", "a file whose own name has a mark of a companion is no model"),
    ("find_best_model", "the first model in the listing whose path has the tag followed by . or -, in any case"),
    ("find_best_model", "without a tag: Q4_K_M, then Q8_0, then the first model of all"),
    ("find_best_model", "of a set of shards only the first is taken, and get_split_files adds the others"),
    ("find_best_sibling", "a companion is a GGUF whose path has its mark, in the model's folder or one above it"),
    ("find_best_sibling", "of several: the deepest, then the one with -TAG. in its path, then the nearest in bits"),
    ("common_download_get_hf_plan", "of a companion one file is taken, though it be one of several shards"),
)
# What llama.cpp looks for when it is told to draft with a head (--spec-type draft-mtp), and for images.
DRAFT_MARK = "mtp-"
IMAGE_MARK = "mmproj"
# Files whose own name has one of these are no models.
NO_MODEL_MARKS = (DRAFT_MARK, IMAGE_MARK, "imatrix", "eagle3-", "dflash-", "dspark-")
DEFAULT_TAGS = ("Q4_K_M", "Q8_0")
PRESET = "preset.ini"

_SHARD = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})", re.IGNORECASE)
_TAG = re.compile(r"[-.]([A-Z0-9_]+)\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Picks:
    """What `-hf` takes: all files of the model, and one file each of the head and of the part for images."""

    tag: str | None
    model: tuple[str, ...] = ()
    draft: str | None = None
    images: str | None = None
    preset: bool = False


@dataclass(frozen=True)
class Named:
    """What the name of a GGUF says: the stem that all its shards share, the tag, its place and the number of shards."""

    stem: str
    tag: str
    index: int = 1
    count: int = 1


def named(path: str) -> Named:
    """What a path says. Source: get_gguf_split_info."""
    if not path.endswith(".gguf"):
        return Named("", "", 0, 0)
    stem, index, count = path.removesuffix(".gguf"), 1, 1
    if match := _SHARD.fullmatch(stem):
        stem, index, count = match[1], int(match[2]), int(match[3])
    tag = _TAG.search(stem)
    return Named(stem, tag[1].upper() if tag else "", index, count)


def is_model(path: str) -> bool:
    """Whether a file may be taken for a model. Source: gguf_filename_is_model."""
    name = path.rpartition("/")[2]
    return path.endswith(".gguf") and not any(mark in name for mark in NO_MODEL_MARKS)


def picks(paths: Sequence[str], tag: str | None = None) -> Picks:
    """What is taken of the files of a repository, in the order of the listing, for a tag or none."""
    if PRESET in paths:
        return Picks(tag, preset=True)
    first = _model(paths, tag)
    return Picks(
        tag,
        tuple(path for path in paths if _same_set(path, first)) if first else (),
        _companion(paths, first, DRAFT_MARK, tag),
        _companion(paths, first, IMAGE_MARK, None) if first else None,
    )


def _model(paths: Sequence[str], tag: str | None) -> str | None:
    models = [path for path in paths if is_model(path) and (named(path).count <= 1 or named(path).index == 1)]
    for wanted in (tag,) if tag else DEFAULT_TAGS:
        pattern = re.compile(f"{wanted}[.-]", re.IGNORECASE)
        if found := next((path for path in models if pattern.search(path)), None):
            return found
    return models[0] if models and not tag else None


def _same_set(path: str, first: str) -> bool:
    """Source: get_split_files."""
    one, other = named(path), named(first)
    return path == first if other.count <= 1 else (one.stem, one.count) == (other.stem, other.count)


def _companion(paths: Sequence[str], model: str | None, mark: str, tag: str | None) -> str | None:
    """The companion that goes best with a model. Source: find_best_sibling."""
    folder = (model or "").split("/")[:-1]
    bits = _bits(tag) if tag else _bits(named(model).tag if model else "")

    def rank(path: str) -> tuple[int, bool, int]:
        exact = bool(tag) and f"-{tag}.".upper() in path.upper()
        return (-path.count("/"), not exact, abs(_bits(named(path).tag) - bits))

    above = [path for path in paths if path.endswith(".gguf") and mark in path and _is_above(path, folder)]
    return min(above, key=rank, default=None)


def _is_above(path: str, folder: Sequence[str]) -> bool:
    own = path.split("/")[:-1]
    return list(own) == list(folder[: len(own)])


def _bits(tag: str) -> int:
    """The first number in a tag: 4 of Q4_K_M, 16 of BF16. Source: extract_quant_bits."""
    match = re.search(r"\d+", tag)
    return int(match[0]) if match else 0
