"""Everything there is to say about a file or a pair of files: what they are, what is wrong, what runtimes will do."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from nextn.gguf_schema.contents import Contents
from nextn.gguf_schema.errors import InputError
from nextn.gguf_schema.layouts import UPSTREAM, Layout, layout_of, naming_of, upstream_view
from nextn.gguf_schema.nextn_generic import EMBEDDING, TARGET_EMBEDDING_SHA256, declared, flags_of
from nextn.gguf_schema.reading import ARCHITECTURES
from nextn.gguf_schema.shards import FileSet
from nextn.validators.container import examine_container
from nextn.validators.estimate import LONGEST_DRAFT, Estimate, estimate, examine_context
from nextn.validators.findings import Finding, Findings, Severity, folded
from nextn.validators.forecast import Forecast, forecast
from nextn.validators.layout import examine_layout
from nextn.validators.metadata import examine_architecture, examine_metadata
from nextn.validators.other_files import other_file
from nextn.validators.pair import examine_embeddings, examine_pair, examine_target_hash
from nextn.validators.role import RoleReport, assert_role, examine_role
from nextn.validators.structural import examine_small
from nextn.validators.tensors import examine_tensors
from nextn.validators.verdicts import examine_forecast, examine_runtime, use_of
from nextn.validators.wording import with_names

if TYPE_CHECKING:
    from pathlib import Path

    from nextn.gguf_schema.architecture import Role
    from nextn.gguf_schema.shards import GGUFFile
    from nextn.validators.loader_keys import Stop
    from nextn.validators.runtimes import Use

# What an estimate is made for when nothing is asked for: a context that fits most uses, and llama.cpp's defaults.
CONTEXT, UBATCH, KV_TYPE = 8192, 512, "f16"
UNKNOWN_ROLE = {
    "role": None,
    "flags": {"mtp_only": False, "trunk_only": False},
    "trunk_blocks": 0,
    "nextn_blocks": 0,
}
# What makes the places of data meaningless.
UNREADABLE = frozenset({"truncated", "overlap", "misaligned", "bad-alignment", "bad-dimensions", "duplicate-tensor"})


@dataclass(frozen=True)
class Memory:
    """What the estimate is made for; a `context` of None is the model's own, or 8192 tokens if that is longer."""

    context: int | None = None
    ubatch: int = UBATCH
    kv_type: str = KV_TYPE
    n_max: int = LONGEST_DRAFT


@dataclass(frozen=True)
class Examined:
    """One file, all shards of it: what it says, what it is, and what was found. `files` are (path, bytes) pairs.

    Of an architecture without tables there is no `layout`; of a file that is no model, or is not `whole`, no `role`
    either. `stop` is what the container does to a loader. `file` leads to the data, unless it is a plan's.
    """

    files: tuple[tuple[str, int], ...]
    contents: Contents
    layout: Layout | None
    role: RoleReport | None
    findings: tuple[Finding, ...]
    file: GGUFFile | None = None
    whole: bool = True
    stop: Stop | None = None

    @property
    def parameters(self) -> int:
        """Number of elements of all tensors."""
        return sum(tensor.elements for tensor in self.contents)

    def as_json(self) -> dict[str, Any]:
        """The file as `--json` prints it."""
        return {
            "files": [{"path": path, "bytes": size} for path, size in self.files],
            "architecture": self.contents.architecture or None,
            **(self.role.as_json() if self.role else {**UNKNOWN_ROLE, "declared": asdict(declared(self.contents))}),
            "layout": self.layout.id if self.layout else None,
            "layout_evidence": self.layout.evidence if self.layout else None,
            "tensors": len(self.contents.tensors),
            "parameters": self.parameters,
        }


@dataclass(frozen=True)
class Report:
    """The verdict about a model, and about the draft it was given; `pair` holds findings about the two together.

    `use` is what the file, or the pair, is for: the rows of the forecast that count.
    """

    model: Examined
    draft: Examined | None
    pair: tuple[Finding, ...]
    forecast: tuple[Forecast, ...]
    use: Use
    estimate: Estimate | None
    strict: bool = False

    @property
    def attributed(self) -> list[tuple[str, Finding]]:
        """Every finding, and what it is of: `model`, `draft` or `pair`."""
        drafts = self.draft.findings if self.draft else ()
        groups = (("model", self.model.findings), ("draft", drafts), ("pair", self.pair))
        return [(of, finding) for of, found in groups for finding in found]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every finding."""
        return tuple(finding for _, finding in self.attributed)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; doubtful things count when the report is strict."""
        bad = {Severity.ERROR, Severity.WARNING} if self.strict else {Severity.ERROR}
        return not any(finding.severity in bad for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """The report as `--json` prints it."""
        return {
            **self.model.as_json(),
            "draft": self.draft.as_json() if self.draft else None,
            "findings": [{**finding.as_json(), "of": of} for of, finding in self.attributed],
            "forecast": [row.as_json() for row in self.forecast],
            "estimate": self.estimate.as_json() if self.estimate else None,
            "ok": self.ok,
        }


def examine(
    place: Path | FileSet,
    draft: Path | FileSet | None = None,
    *,
    role: Role | None = None,
    runtime: str | None = None,
    deep: bool = False,
    strict: bool = False,
    memory: Memory | None = None,
) -> Report:
    """Examine the file or set of shards at a path, or a set of files wherever it is, and with it the head in `draft`.

    `role` is asserted of the model; `runtime` limits the forecast to one build, whose refusal is an error; `deep` reads
    all data. InputError for a file whose header cannot be read, UsageError for an unknown runtime.
    """
    model, *drafts = (_examine_file(each, deep=deep) for each in (place, *([draft] if draft else ())))
    report = judge(model, drafts[0] if drafts else None, role=role, runtime=runtime, strict=strict, memory=memory)
    return _compare_target(report) if deep else report


def examine_contents(
    contents: Contents, found: Findings | None = None, files: tuple[tuple[str, int], ...] = ()
) -> Examined:
    """Examine what a file says, or will say by a plan; `found` are findings that were made before.

    Tables know upstream's names, so a file with names of another layout is judged by its view in upstream's.
    """
    findings = Findings(found or ())
    if what := other_file(contents):
        findings.note("not-a-model", contents.name, f"is {what}", None, "general.type and general.architecture")
        return Examined(files or ((contents.name, 0),), contents, None, None, tuple(findings))
    layout = layout_of(contents)
    naming = naming_of(layout.id)
    renamed = naming is not None and naming.renames
    view = upstream_view(contents, layout.id) if renamed else contents
    report = examine_role(view, findings)
    if layout.id != UPSTREAM or layout.ambiguous:
        examine_layout(contents.name, layout, naming, findings)
        # What a loader computes, it computes from the names that are there.
        report = replace(report, architecture=contents.architecture, flags=flags_of(contents))
    examine_metadata(view, report, findings)
    examine_tensors(view, report, findings)
    known = layout if naming is not None or contents.architecture in ARCHITECTURES else None
    named = with_names(folded(findings), {"FILE": contents.name})
    return Examined(files or ((contents.name, 0),), contents, known, report, named)


def judge(
    model: Examined,
    draft: Examined | None = None,
    *,
    role: Role | None = None,
    runtime: str | None = None,
    strict: bool = False,
    memory: Memory | None = None,
) -> Report:
    """The report about examined files."""
    found, pair, other = Findings(model.findings), Findings(), draft.contents if draft else None
    about = pair if draft else found
    if role is not None and model.whole:
        assert_role(model.role, role, model.contents.name, found)
    if draft is not None and model.whole and draft.whole:
        examine_pair(model.contents, draft.contents, pair, n_max=memory.n_max if memory else None)
    use = use_of(model.role, other)
    rows = tuple(forecast(model.contents, other, runtime, stop=model.stop, draft_stop=draft.stop if draft else None))
    if any(not each.whole and each.stop is None for each in (model, draft) if each):
        rows = ()  # What is missing would decide.
    if runtime is not None:
        examine_runtime(runtime, rows, use, model.contents, other, about)
    if memory is not None and memory.context is not None:
        examine_context(model.contents, memory.context, found)
    everything = (*found, *(draft.findings if draft else ()), *pair)
    if model.role and not any(finding.severity is Severity.ERROR for finding in everything):
        examine_forecast(rows, use, model.role.role, model.contents, other, about)
    return Report(
        replace(model, findings=with_names(found, {"FILE": model.contents.name})),
        draft,
        with_names(pair, {"TRUNK": model.contents.name, "HEAD": other.name} if other else {}),
        rows,
        use,
        _estimate(model, draft, memory or Memory()),
        strict,
    )


def _examine_file(place: Path | FileSet, *, deep: bool) -> Examined:
    container = examine_container(place)
    name = place.name if isinstance(place, FileSet) else str(place)
    file, findings = container.file, container.findings
    files = tuple((header.source.name, header.source.size) for header in file.headers)
    if not container.whole:
        examine_architecture(file.contents, findings)
        named = with_names(findings, {"FILE": name})
        return Examined(files, file.contents, None, None, named, whole=False, stop=container.stop)
    examined = replace(examine_contents(file.contents, findings, files), stop=container.stop)
    payload = Findings(examined.findings)
    # Without a way to data of which nobody knows where it is.
    if any(finding.rule in UNREADABLE for finding in findings):
        return examined
    if deep:
        # Not above: numpy takes longer to import than all else that is done for a file.
        from nextn.validators.payload import examine_payload

        examine_payload(file, payload)
        _assert_unchanged(file)
    else:
        examine_small(file, payload)
    return replace(examined, findings=with_names(payload, {"FILE": name}), file=file)


def _assert_unchanged(file: GGUFFile) -> None:
    """InputError when a file was written to since its header was read: the two do not belong together then."""
    for header in file.headers:
        if not header.source.is_unchanged:
            message = "was changed while it was read: nothing is known of it"
            remedy = "Validate it again when nothing writes to it."
            raise InputError("source-changed", message, subject=header.source.name, remedy=remedy)


def _compare_target(report: Report) -> Report:
    """The report, with a finding when the target that a sidecar names by its embeddings' hash is another one."""
    file, draft = report.model.file, report.draft
    if file is None or draft is None or EMBEDDING not in file.contents.tensors:
        return report
    # With numpy, as above.
    from nextn.validators.scan import sha256

    pair = Findings(report.pair)
    if TARGET_EMBEDDING_SHA256 in draft.contents.keys:
        ours = file.contents.tensors[EMBEDDING]
        examine_target_hash(draft.contents, sha256(*file.tensor_bytes(EMBEDDING)), pair, ours.type)
    elif draft.file and EMBEDDING in draft.contents.tensors:
        digests = [sha256(*each.tensor_bytes(EMBEDDING)) for each in (file, draft.file)]
        examine_embeddings(file.contents, draft.contents, digests, pair)
    return replace(report, pair=tuple(pair))


def _estimate(model: Examined, draft: Examined | None, memory: Memory) -> Estimate | None:
    if model.role is None:
        return None
    own = model.contents.get("context_length")
    longest = own.value if own and isinstance(own.value, int) and own.value > 0 else CONTEXT
    return estimate(
        model.contents,
        draft.contents if draft else None,
        context=memory.context or min(longest, CONTEXT),
        ubatch=memory.ubatch,
        kv_type=memory.kv_type,
        n_max=memory.n_max,
    )
