"""Models from files: a trunk, and heads if there are any, with what a shared sidecar borrows."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import InputError, UsageError, VerdictError
from nextn.gguf_schema.layouts import layout_of, naming_of
from nextn.gguf_schema.nextn_generic import head_blocks, role_of
from nextn.gguf_schema.shards import GGUFFile, open_gguf
from nextn.runtime.model import Heads, Trunk
from nextn.runtime.weights import Weights
from nextn.validators.findings import Findings, Severity
from nextn.validators.pair import examine_pair

MODULES = {"step35": "step35", "qwen4exp": "qwen4exp", "glm5-next": "glm5_next"}
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Pair:
    """A trunk, and the heads that draft for it; `unused` are tensors of their files that nothing reads."""

    trunk: Trunk
    heads: Heads | None
    file: GGUFFile
    unused: tuple[str, ...] = ()


def use_threads(count: int) -> None:
    """Compute with so many threads; matrices of tiny models are done before a second one has woken up."""
    torch.set_num_threads(count)


def load_pair(
    model: Path,
    draft: Path | None = None,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    drafting: bool = True,
    flat: bool = False,
) -> Pair:
    """The model of a file, with the heads of `draft`, or its own; without `drafting` none.

    `flat` norms the hidden row that a qwen4exp head takes over all its streams at once. Raises VerdictError for a head
    that is given as a model, and for a pair that does not fit; InputError for files that cannot be read, architectures
    and devices that the runtime does not have, and missing weights: none is ever taken for zeros.
    """
    _check_device(device)
    file = open_gguf(model)
    role = _checked_role(file)
    if not role.has_trunk:
        message = f"is {role}: this is a draft head; give its trunk"
        raise VerdictError("draft-head", message, subject=str(model), remedy=f"nextn generate -m TRUNK -d {model}")
    weights = Weights(file, DTYPES[dtype], device)
    module = import_module(f"nextn.runtime.models.{MODULES[file.contents.architecture]}")
    trunk: Trunk = module.Trunk(weights)
    if not drafting or (draft is None and not role.has_head):
        return Pair(trunk, None, file, _unused(weights, trunk_only=True))
    head_weights = weights
    if draft is not None:
        head_file = open_gguf(draft)
        _check_pair(file, head_file)
        head_weights = Weights(head_file, DTYPES[dtype], device, lender=weights)
    if flat and file.contents.architecture != "qwen4exp":
        message = f"has no streams that could be normed together: it is of {file.contents.architecture}"
        raise UsageError("no-streams", message, subject=str(model), remedy="leave --hnorm out")
    heads: Heads = module.Heads(head_weights, **({"hnorm": "flat"} if flat else {}))
    if draft is None:
        return Pair(trunk, heads, file, _unused(weights))
    return Pair(trunk, heads, file, _unused(weights, trunk_only=True) + _unused(head_weights, heads_only=True))


def _check_device(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        message = f"torch {torch.__version__} sees no such device"
        raise InputError("no-device", message, subject=device, remedy="compute with --device cpu")


def _unused(weights: Weights, *, trunk_only: bool = False, heads_only: bool = False) -> tuple[str, ...]:
    """The tensors that nothing has read; of one part those that can only be that part's."""
    left = [name for name in weights.contents.tensors if name not in weights.read]
    of_heads = {name for block in head_blocks(weights.contents) for name in left if name.startswith(f"blk.{block}.")}
    if trunk_only:
        return tuple(name for name in left if name not in of_heads)
    return tuple(name for name in left if not heads_only or name in of_heads)


def _checked_role(file: GGUFFile) -> Role:
    contents = file.contents
    naming = naming_of(layout_of(contents).id)
    if naming is not None and naming.renames:
        remedy = f"nextn relayout {contents.name} -o FILE --to upstream"
        raise InputError("layout", f"is in layout {naming.id}", subject=contents.name, remedy=remedy)
    if contents.architecture not in MODULES:
        known = ", ".join(MODULES)
        message = f"is of architecture {contents.architecture!r}; the reference runtime has {known}"
        raise InputError("no-such-model", message, subject=contents.name)
    role = role_of(contents)
    if role is None:
        raise InputError("no-blocks", "holds no block of a model", subject=contents.name)
    return role


def _check_pair(trunk: GGUFFile, head: GGUFFile) -> None:
    """Raise VerdictError with the validator's errors about the pair."""
    findings = Findings()
    examine_pair(trunk.contents, head.contents, findings)
    errors = [f"{f.subject} {f.message}" for f in findings if f.severity is Severity.ERROR]
    if errors:
        raise VerdictError("pair-refused", "; ".join(errors), subject=head.contents.name)
    _checked_role(head)
