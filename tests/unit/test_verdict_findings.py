"""What runtimes do, as findings: the build that was asked for, every listed build; and files that are no models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from edited_contents import COMBINED, GLM, MTP, MTP_SHARED, QWEN, STEP, TRUNK, generic, planned
from fault_tables import FAULTS
from faults import edited

from nextn.gguf_schema.contents import Contents, TensorInfo, string
from nextn.gguf_schema.types import F32
from nextn.validators.examine import Memory, Report, examine_contents, judge
from nextn.validators.findings import Severity

if TYPE_CHECKING:
    from nextn.validators.findings import Finding

B11549 = "llama.cpp@b11549"


def report(model: Contents, draft: Contents | None = None, runtime: str | None = None) -> Report:
    return judge(examine_contents(model), examine_contents(draft) if draft else None, runtime=runtime)


def rules(found: Report) -> list[tuple[str, str]]:
    return [(finding.severity, finding.rule) for finding in found.findings]


def named(contents: Contents, name: str) -> Contents:
    return Contents(contents.keys, contents.tensors, name)


def of_llama(architecture: str = "llama") -> Contents:
    """The keys and tensors of a step35 file under the name of an architecture without heads."""
    contents = planned(STEP)
    return Contents({**contents.keys, "general.architecture": string(architecture)}, contents.tensors, "other.gguf")


# Right for some models, which the forecast says too: these are doubtful, and strict is for them.
DOUBTFUL = {"step35 combined: no rope_freqs", "qwen4exp combined: no n-grams at all"}


def test_what_is_silently_wrong_is_an_error() -> None:
    """A user trusted "ok" beside "loads silently wrong"."""
    for name, fault in FAULTS.items():
        found = report(edited(planned(fault.family, fault.base), fault.edit))
        uses = ("main", "draft") if found.model.role and found.model.role.nextn_blocks else ("main",)
        wrong = [
            row
            for row in found.forecast
            if row.as_ in uses and (row.runtime, row.outcome) == (B11549, "loads silently wrong")
        ]
        if wrong and not (found.model.role and found.model.role.name in (MTP, MTP_SHARED) and wrong[0].as_ == "main"):
            severity = Severity.WARNING if name in DOUBTFUL else Severity.ERROR
            assert severity in {finding.severity for finding in found.findings}, name


def test_every_error_and_warning_says_what_to_do() -> None:
    for name, fault in FAULTS.items():
        for finding in examine_contents(edited(planned(fault.family, fault.base), fault.edit)).findings:
            if finding.severity is not Severity.NOTE:
                assert finding.remedy, (name, finding)
                assert finding.remedy[0].islower() or finding.remedy.startswith(("True", "0", "1")), finding.remedy
                assert not finding.remedy.endswith("."), finding.remedy


def test_documents_that_no_user_has_are_not_named() -> None:
    """The specifications are not part of the distribution; documents that are named are."""
    for fault in FAULTS.values():
        found = report(edited(planned(fault.family, fault.base), fault.edit))
        for source in [*(row.source for row in found.forecast), *(str(f.reason) for f in found.findings)]:
            assert ".md" not in source.replace("docs/formats.md", "").replace("docs/deviations.md", ""), source


def test_a_build_of_which_nothing_is_known() -> None:
    """`--for` said "ok" when there was no forecast."""
    other = generic("glm4moe", range(3), (3,), block_count=4, nextn_predict_layers=1)
    found = report(other, runtime=B11549)
    assert rules(found) == [("error", "forecast-unknown")]
    assert found.findings[0].message.startswith(f"nothing is known of glm4moe in {B11549}")
    assert report(other).ok
    # Of an architecture that the build of a fork is not about.
    assert rules(report(planned(STEP), runtime="llama.cpp PR 28243")) == [("error", "forecast-unknown")]
    assert report(planned(QWEN), runtime="llama.cpp PR 28243").ok


def test_a_pair_of_which_one_half_is_unknown() -> None:
    """A draft of another architecture was forecast to load, since nothing was known of it."""
    found = report(planned(STEP, TRUNK), of_llama())
    paired = [row for row in found.forecast if row.as_ == "paired" and row.runtime == B11549]
    # Asked of the library: "key not found in model: llama.context_length; failed to load draft model".
    assert [row.outcome for row in paired] == ["refuses"]
    assert paired[0].message.endswith("key not found in model: llama.context_length")
    # Without a fault in what is read for every architecture, it may load: nothing is claimed.
    trunk = generic("glm4moe", range(3), (), block_count=3)
    head = generic("glm4moe", (), (3,), block_count=4, nextn_predict_layers=1)
    found = report(trunk, head, B11549)
    assert not [row for row in found.forecast if row.as_ == "paired"]
    assert ("error", "forecast-unknown") in rules(found)


@pytest.mark.parametrize("family", [STEP, GLM])
def test_a_shared_sidecar_that_nothing_loads(family: str) -> None:
    """The verdict of a good pair was a bare "ok", and no build loads it."""
    trunk, head = named(planned(family, TRUNK), "t.gguf"), named(planned(family, MTP_SHARED), "my head.gguf")
    for found, remedy in (
        (report(head), "nextn join TRUNK 'my head.gguf' --emit mtp -o OUT.gguf"),
        (report(trunk, head), "nextn join t.gguf 'my head.gguf' --emit mtp -o OUT.gguf"),
    ):
        assert rules(found) == [("note", "loads-nowhere")]
        assert (found.findings[0].subject, found.findings[0].remedy) == ("my head.gguf", remedy)
        assert found.ok
    found = report(trunk, head, B11549)
    assert rules(found) == [("error", "forecast")]
    assert (found.findings[0].subject, found.findings[0].remedy) == ("my head.gguf", remedy)
    assert not report(planned(family, TRUNK), planned(family, MTP)).findings


def test_the_fork_that_loads_a_shared_sidecar() -> None:
    assert not report(planned(QWEN, TRUNK), planned(QWEN, MTP_SHARED)).findings


def test_remedies_name_the_file() -> None:
    contents = named(edited(planned(STEP), remove_keys="nextn_predict_layers"), "a b.gguf")
    (finding,) = report(contents).findings
    assert str(finding.remedy).startswith("nextn repair 'a b.gguf' -o OUT.gguf, or set ")


def no_model(architecture: str, kind: str | None = None) -> Contents:
    keys = {"general.architecture": string(architecture)} if architecture else {}
    if kind:
        keys["general.type"] = string(kind)
    return Contents(keys, {"blk.0.attn_q.weight": TensorInfo("blk.0.attn_q.weight", (8, 8), F32, 256)}, "other.gguf")


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (no_model("clip", "mmproj"), "a vision or audio projector"),
        (no_model("clip"), "a vision or audio projector"),
        (no_model("", "imatrix"), "an importance matrix"),
        (no_model("llama", "adapter"), "an adapter (LoRA)"),
    ],
)
def test_files_that_are_no_models(contents: Contents, words: str) -> None:
    found = report(contents)
    assert rules(found) == [("note", "not-a-model")]
    assert words in found.findings[0].message
    assert (found.model.role, found.model.layout) == (None, None)
    found = report(planned(STEP, TRUNK), contents)
    assert ("error", "pair-no-head") in rules(found)
    assert words in next(str(finding.message) for finding in found.pair)
    found = judge(examine_contents(contents), role=TRUNK)
    assert ("error", "role-not-asserted") in rules(found)


def test_a_context_that_is_longer_than_the_models() -> None:
    def about(context: int) -> list[Finding]:
        found = judge(examine_contents(planned(STEP)), memory=Memory(context))
        return [finding for finding in found.findings if finding.rule == "context-beyond"]

    assert about(4096) == []
    (finding,) = about(4097)
    assert (finding.severity, finding.subject) == ("note", "step35.context_length")


def test_the_layout_of_an_architecture_without_tables_is_not_known() -> None:
    assert examine_contents(generic("glm4moe", range(3), (3,), block_count=4, nextn_predict_layers=1)).layout is None
    assert examine_contents(planned(STEP, COMBINED)).layout is not None
