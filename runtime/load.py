"""Models from files: a trunk, and heads if there are any, with what a shared sidecar borrows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from math import prod
from pathlib import Path

import torch

from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import InputError, UsageError, VerdictError, counted, extra, size
from nextn.gguf_schema.layouts import layout_of, naming_of
from nextn.gguf_schema.nextn_generic import head_blocks, role_of
from nextn.gguf_schema.reading import ARCHITECTURES, read_hyperparameters
from nextn.gguf_schema.shards import GGUFFile, open_gguf
from nextn.kernels.operations import DEFAULT, Operations, computing, operations
from nextn.runtime.model import Heads, Trunk
from nextn.runtime.weights import Weights
from nextn.validators.examine import examine_contents
from nextn.validators.findings import Findings, Severity
from nextn.validators.pair import examine_pair

MODULES = {"step35": "step35", "qwen4exp": "qwen4exp", "glm5-next": "glm5_next"}
# Errors that are none here: what only llama.cpp stumbles over, and what is told when it is asked for.
NOT_MINDED = frozenset(
    {
        "context-length",
        "head-probe-missing",
        "ngram-keys-in-head",
        "shared-marker",
        "tensor-missing",
        "tensor-type",
        "tensor-unexpected",
        "tokenizer-missing",
        "tokenizer-unknown",
        "trunk-probe-missing",
        "vocabulary-text",
    }
)
TOKENIZER = "tokenizer."
INTERPRETED = "TRITON_INTERPRET"
# What Triton reads as on in its variables, in letters of any case; all else is off.
ON = ("1", "true", "yes", "on", "y")
NUMBA = "NUMBA_"
# What numba raises when it is missing, broken, or (ValueError) told by its variables what it cannot do.
NUMBA_ERRORS = (ImportError, OSError, ValueError)
# The extra that has what a form of the operations needs.
EXTRAS = {"cpu": "runtime", "triton": "gpu"}
FLOAT_BYTES = 4
# Bytes of files up to which more threads than one only wait for each other.
TINY = 64 << 20
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Pair:
    """A trunk, and the heads that draft for it; `unused` are tensors of their files that nothing reads.

    `weights` are those of the trunk and of the heads: the same when one file has both. `kernels` are the form of the
    operations that computes. `notes` are what else a user should know of how tensors are used.
    """

    trunk: Trunk
    heads: Heads | None
    file: GGUFFile
    weights: tuple[Weights, Weights]
    kernels: str
    unused: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What stands for a missing tensor, and what is kept decoded."""
        held = dict.fromkeys(self.weights)
        decoded = [tensor for weights in held for tensor in weights.unpacked]
        notes = list(dict.fromkeys(note for weights in held for note in weights.notes))
        if decoded:
            types = ", ".join(sorted({tensor.type.name for tensor in decoded}))
            amount = size(sum(tensor.elements for tensor in decoded) * FLOAT_BYTES)
            told = f"{counted(len(decoded), 'tensor')} of {types}, which these kernels do not read packed"
            notes.append(f"decoded once, and kept: {told}: {amount}")
        return notes


def fit_threads(files: Iterable[Path]) -> None:
    """Compute with one thread when the files of a model are tiny; else with as many as before."""
    if sum(path.stat().st_size for path in files) <= TINY:
        use_threads(1)


def use_threads(count: int) -> None:
    """Compute with so many threads; matrices of tiny models are done before a second one has woken up."""
    torch.set_num_threads(count)
    # What is wrong with numba is told where something is to be compiled.
    with suppress(*NUMBA_ERRORS):
        import numba

        numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]


@contextmanager
def watched_compiling(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` when numba begins to compile: once, and not when all that is needed is in its cache."""
    if "numba" not in sys.modules:
        # Nothing that was loaded is compiled.
        yield
        return
    from numba.core import event

    class Once(event.Listener):
        told = False

        def on_start(self, _: object) -> None:
            if not self.told:
                self.told = True
                tell()

        def on_end(self, _: object) -> None:
            """It was told already."""

    listener = Once()
    event.register("numba:compile", listener)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)  # type: ignore[no-untyped-call]


def load_pair(
    model: Path,
    draft: Path | None = None,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    drafting: bool = True,
    flat: bool = False,
    kernels: str | None = None,
) -> Pair:
    """The model of a file, with the heads of `draft`, or its own; without `drafting` none.

    `flat` norms the hidden row that a qwen4exp head takes over all its streams at once; `kernels` are the form of the
    operations, by default the fast one of the device. Raises VerdictError for a head that is given as a model, for keys
    and shapes that nothing can be computed with, and for a pair that does not fit; InputError for files that cannot be
    read, architectures and devices that the runtime does not have, and missing weights: none is ever taken for zeros.
    """
    _check_device(device)
    file = open_gguf(model)
    role = _checked_role(file)
    if not role.has_trunk:
        message = f"is {role}: this is a draft head; give its trunk"
        raise VerdictError("draft-head", message, subject=str(model), remedy=f"nextn generate -m TRUNK -d {model}")
    file = _checked_contents(file, role)
    form = _form(kernels or DEFAULT[device], device, DTYPES[dtype])
    ops = _operations(form, DTYPES[dtype])
    weights = Weights(file, DTYPES[dtype], device, ops=ops)
    module = import_module(f"nextn.runtime.models.{MODULES[file.contents.architecture]}")
    trunk: Trunk = module.Trunk(weights)
    if not drafting or (draft is None and not role.has_head):
        return Pair(trunk, None, file, (weights, weights), form, _unused(weights, trunk_only=True))
    head_weights = weights
    if draft is not None:
        head_file = _checked_head(file, open_gguf(draft))
        head_weights = Weights(head_file, DTYPES[dtype], device, lender=weights, ops=ops)
    if flat and file.contents.architecture != "qwen4exp":
        message = f"has no streams that could be normed together: it is of {file.contents.architecture}"
        raise UsageError("no-streams", message, subject=str(model), remedy="leave --hnorm out")
    heads: Heads = module.Heads(head_weights, **({"hnorm": "flat"} if flat else {}))
    if draft is None:
        return Pair(trunk, heads, file, (weights, weights), form, _unused(weights))
    unused = _unused(weights, trunk_only=True) + _unused(head_weights, heads_only=True)
    return Pair(trunk, heads, file, (weights, head_weights), form, unused)


def _form(kernels: str, device: str, dtype: torch.dtype) -> str:
    """The form that computes when `kernels` are asked for: in types that they do not compute in, the definition."""
    # Triton's interpreter takes tensors of the CPU: for tests.
    interpreted = kernels == "triton" and os.environ.get(INTERPRETED, "").lower() in ON
    if kernels not in ("reference", DEFAULT[device]) and not interpreted:
        remedy = f"leave --kernels out, or give {DEFAULT[device]} or reference"
        if kernels == "triton":
            remedy += f"; for tests: interpreted with {INTERPRETED}=1"
        raise UsageError("kernels-device", f"do not compute on {device}", subject=f"{kernels} kernels", remedy=remedy)
    return computing(kernels, dtype)


def _operations(form: str, dtype: torch.dtype) -> Operations:
    try:
        return _compiled(dtype) if form == "cpu" else operations(form, dtype)
    except NUMBA_ERRORS as error:
        reason, remedy = str(error).split("\n")[0], extra(EXTRAS[form])
        message = f"cannot be loaded: {reason}"
        if isinstance(error, ModuleNotFoundError):
            message = f"need {error.name}, which is not installed"
        if isinstance(error, ValueError):
            given = sorted(name for name in os.environ if name.startswith(NUMBA))
            remedy = f"unset {' or '.join(given) or 'what numba is configured by'}"
        remedy += "; or compute with --kernels reference"
        raise InputError("kernels-missing", message, subject=f"{form} kernels", remedy=remedy) from error


def _compiled(dtype: torch.dtype) -> Operations:
    """The operations compiled by numba; ValueError when it is told not to compile, or has no threads to launch."""
    import numba

    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        raise ValueError("numba is told not to compile (NUMBA_DISABLE_JIT)")
    ops = operations("cpu", dtype)
    # Behind the import, which chooses the threads: they are launched now, for else the first large product finds out.
    numba.get_num_threads()
    return ops


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


def _checked_contents(file: GGUFFile, role: Role) -> GGUFFile:
    """The file, its tensors of the dimensions that the tables have: ones may be left out or added in a file.

    VerdictError with the validator's errors about it, before anything is computed by its keys.
    """
    contents = file.contents
    errors = [
        finding
        for finding in examine_contents(contents).findings
        if finding.severity is Severity.ERROR
        and finding.rule not in NOT_MINDED
        # Prompts of token ids do without a tokenizer, unless it has other ids than the model.
        and (finding.rule == "vocabulary-size" or not finding.subject.startswith(TOKENIZER))
    ]
    if errors:
        first, *others = errors
        more = f"; and {counted(len(others), 'more error')}" if others else ""
        remedy = f"{first.remedy}; nextn validate {contents.name} says all" if others else first.remedy
        raise VerdictError(first.rule, f"{first.subject} {first.message}{more}", subject=contents.name, remedy=remedy)
    architecture = ARCHITECTURES[contents.architecture]
    wanted = architecture.tensors_of(read_hyperparameters(architecture, contents)[0], role)
    held = contents.tensors
    # What else differs was judged by what tensors show where keys are in doubt: as the size of the vocabulary.
    shaped = {
        each.name: replace(held[each.name], ne=each.ne)
        for each in wanted
        if each.name in held and held[each.name].ne != each.ne and held[each.name].elements == prod(each.ne)
    }
    return replace(file, contents=replace(contents, tensors={**held, **shaped})) if shaped else file


def _checked_head(trunk: GGUFFile, head: GGUFFile) -> GGUFFile:
    """The head's file; VerdictError with the validator's errors about the pair, and about the file."""
    findings = Findings()
    examine_pair(trunk.contents, head.contents, findings)
    errors = [f"{f.subject} {f.message}" for f in findings if f.severity is Severity.ERROR]
    if errors:
        name = head.contents.name
        raise VerdictError("pair-refused", "; ".join(errors).removeprefix(f"{name} "), subject=name)
    return _checked_contents(head, _checked_role(head))
