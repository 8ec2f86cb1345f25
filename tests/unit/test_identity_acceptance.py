"""What heads are worth: the gate, the reference beside, places in the draft and tenths of the context (I10 to I13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from stub_heads import StubHeads, right, right_up_to, wrong
from toy_models import ToyTrunk

from nextn.gguf_schema.errors import InputError
from nextn.runtime.engines.engine import Asked, Continuation, Outcome, Prompts
from nextn.runtime.engines.reference import Reference
from nextn.runtime.identity.acceptance import by_decile, by_position, drop
from nextn.runtime.identity.certificate import Certificate
from nextn.runtime.identity.check import check
from nextn.runtime.identity.observe import Settings
from nextn.runtime.identity.prompts import Prompt

TRUNK = ToyTrunk()
PROMPTS = [Prompt(f"p{i}", "kind", (3 + i, 5, 8)) for i in range(3)]
GATE = "acceptance-gate"


def rules(certificate: Certificate) -> set[str]:
    return {finding.rule for finding in certificate.findings}


def engine(heads: StubHeads | None, name: str = "reference") -> Reference:
    return Reference(TRUNK, heads, (), name=name)


def test_a_head_that_is_always_wrong_is_identical_and_fails_the_gate_with_what_was_checked() -> None:
    verified = ["sampling is greedy", "the vocabularies fit"]
    certificate = check([engine(StubHeads(wrong(TRUNK)))], PROMPTS, Settings((1, 3), 12), verified=verified)
    assert certificate.verdict == "identical"
    gates = [finding for finding in certificate.findings if finding.rule == GATE]
    assert [finding.subject for finding in gates] == ["reference, n_max 1", "reference, n_max 3"]
    assert all("sampling is greedy; the vocabularies fit" in finding.message for finding in gates)
    assert gates[0].message.startswith("0 of 30 drafted tokens accepted")


def test_too_few_tokens_say_nothing_about_a_head() -> None:
    certificate = check([engine(StubHeads(wrong(TRUNK)))], PROMPTS[:1], Settings((1,), 7))
    assert GATE not in rules(certificate)


def test_a_good_head_gets_no_finding() -> None:
    certificate = check([engine(StubHeads(right(TRUNK)))], PROMPTS, Settings((1, 3), 12))
    assert (certificate.verdict, certificate.findings) == ("identical", ())
    assert [each.aggregate_accept_rate for each in certificate.aggregate] == [None, 1.0, 1.0]


def test_without_a_head_it_is_told_that_nothing_was_drafted() -> None:
    assert rules(check([engine(None)], PROMPTS, Settings((1,), 8))) == {"nothing-drafted"}


def test_texts_without_room_for_a_draft_blame_no_head() -> None:
    """Of two tokens the first comes with the prompt, and the other is the trunk's own."""
    head = engine(StubHeads(right(TRUNK)))
    [short] = check([head], PROMPTS, Settings((1,), 2)).findings
    assert short.message == "no token was drafted: texts of 2 tokens leave no room for a draft"
    assert "head" not in str(short.remedy)
    assert check([head], PROMPTS, Settings((1,), 3)).findings == ()
    [missing] = check([engine(None)], PROMPTS, Settings((1,), 3)).findings
    assert (missing.message, "a head" in str(missing.remedy)) == ("no token was drafted", True)


def test_an_engine_that_accepts_clearly_less_than_the_reference_is_told() -> None:
    """A fault in the head alone cannot change the text: only this shows it (I11)."""
    bad, good = engine(StubHeads(wrong(TRUNK)), "other"), engine(StubHeads(right(TRUNK)))
    certificate = check([bad], PROMPTS, Settings((2,), 16), yardstick=good)
    assert certificate.verdict == "identical"
    (low,) = [finding for finding in certificate.findings if finding.rule == "acceptance-low"]
    assert low.message == "accepts 0.0% of the drafted tokens, the reference runtime 100.0%"
    assert "acceptance-low" not in rules(check([good], PROMPTS, Settings((2,), 16), yardstick=good))


def test_a_head_that_errs_late_is_seen_in_the_tenths_and_not_in_the_mean() -> None:
    """I13: right up to row 40 of 63, wrong from there on."""
    certificate = check([engine(StubHeads(right_up_to(TRUNK, 40)))], PROMPTS, Settings((1,), 60))
    (sums,) = [each for each in certificate.aggregate if each.n_max == 1]
    assert sums.aggregate_accept_rate is not None
    assert 0.3 < sums.aggregate_accept_rate < 0.7
    assert sums.accepted_by_decile is not None
    assert sums.accepted_by_decile[:6] == (1.0,) * 6
    assert sums.accepted_by_decile[7:] == (0.0,) * 3
    (decay,) = [finding for finding in certificate.findings if finding.rule == "acceptance-decay"]
    assert decay.message.startswith("100% accepted in tenth 1 of the context, 0% in tenth 10")


def test_parts_by_place_and_tenth_are_counted_by_hand() -> None:
    rounds = [(0, 3, 3), (4, 3, 1), (90, 2, 0)]
    assert by_position(rounds) == (2 / 3, 1 / 3, 1 / 2)
    assert by_decile(rounds, 100) == (4 / 6, *[None] * 8, 0.0)


def test_a_drop_is_in_standard_deviations_of_two_parts() -> None:
    # Of 100 and 100, 90 and 70: the common part is 0.8, its deviation sqrt(0.16 * 0.02).
    assert drop((90, 100), (70, 100)) == pytest.approx(0.2 / 0.0032**0.5)
    assert drop((0, 0), (1, 1)) == drop((5, 5), (5, 5)) == 0


@dataclass(frozen=True)
class Failing:
    """Says 1, 2, 3 and fails behind so many prompts with a draft, or without one."""

    drafting: int = 99
    plain: int = 99
    name: str = "failing"
    context: int | None = None
    asked: list[int] = field(default_factory=list)

    def describe(self) -> dict[str, str]:
        return {}

    def run(self, prompts: Prompts, asked: Asked) -> Outcome:
        most = self.drafting if asked.n_max else self.plain
        made = Continuation((1, 2, 3), "limit", asked.n_max, asked.n_max)
        found = tuple(made for _ in prompts[:most])
        return Outcome("ok", "", found) if len(found) == len(prompts) else Outcome("abort", "GGML_ASSERT", found)

    def run_together(self, _: Sequence[Sequence[int]], __: Asked) -> None:
        return None

    def close(self) -> None:
        pass


def test_a_crash_of_some_drafted_runs_is_a_result() -> None:
    certificate = check([Failing(drafting=1)], PROMPTS, Settings((1,), 3))
    assert (certificate.verdict, certificate.cause) == ("logic", "unknown")
    (failed,) = [finding for finding in certificate.findings if finding.rule == "engine-failed"]
    assert failed.message == "4 runs failed, the first p1 (n_max 1): GGML_ASSERT"
    assert [(run.status, run.identical) for run in certificate.runs if run.order == "B1"] == [
        ("ok", True),
        ("abort", None),
        ("abort", None),
    ]


@pytest.mark.parametrize(("failing", "told"), [(Failing(plain=2), "without a draft"), (Failing(0), "with a draft")])
def test_an_engine_that_cannot_be_judged_is_an_input_error(failing: Failing, told: str) -> None:
    with pytest.raises(InputError, match=f"{told}: GGML_ASSERT"):
        check([failing], PROMPTS, Settings((1, 2), 3))


def test_a_prompt_that_leaves_no_room_is_an_input_error() -> None:
    with pytest.raises(InputError, match="prompt p0: has 3 tokens; a context of 12 has room for 1"):
        check([Failing(context=12)], PROMPTS, Settings((1, 2), 7))
