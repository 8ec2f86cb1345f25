"""How drafts fared: by place in the draft and tenth of the context, beside the reference runtime, and a gate.

A head cannot change greedy text. Its faults show here or nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt

from nextn.gguf_schema.errors import counted
from nextn.runtime.identity.certificate import AggregateRecord
from nextn.runtime.identity.observe import Observation
from nextn.runtime.runs import parts_accepted
from nextn.validators.findings import Findings

Rounds = Iterable[tuple[int, int, int]]
TENTHS = 10
# The gate that a user of llama.cpp proposed for a bug there (case R16), and one of ours for falling behind.
GATE_RATE, GATE_TOKENS = 0.01, 8
SIGMAS = 3.0
# Tokens of the shortest text that has room for a draft: the first comes with the prompt, the last is the trunk's own.
SHORTEST_DRAFTED = 3
LARGE_DROP, LARGE_DECAY = 0.05, 0.1


def by_position(rounds: Rounds) -> tuple[float, ...]:
    """The part of the verified tokens at each place of a draft that was accepted."""
    return tuple(parts_accepted([(submitted, accepted) for _, submitted, accepted in rounds]))


def tenths(rounds: Rounds, rows: int) -> list[tuple[int, int]]:
    """(Accepted, verified) tokens in each tenth of a context of `rows` rows."""
    found = [(0, 0)] * TENTHS
    for before, submitted, accepted in rounds:
        place = min(before * TENTHS // rows, TENTHS - 1)
        found[place] = (found[place][0] + accepted, found[place][1] + submitted)
    return found


def by_decile(rounds: Rounds, rows: int) -> tuple[float | None, ...]:
    """The part of verified tokens that was accepted in each tenth of a context; None where none was verified."""
    return tuple(accepted / tried if tried else None for accepted, tried in tenths(rounds, rows))


def context_rows(observed: Sequence[Observation]) -> int:
    """The rows of the longest sequence: the context that tenths are of."""
    return max(len(o.prompt.tokens) + len(o.tokens) for o in observed)


def aggregate(engine: str, observed: Sequence[Observation], rows: int) -> list[AggregateRecord]:
    """The sums of each configuration over all prompts, each alone, once; seconds are the mean of both times."""
    found = []
    for n_max in dict.fromkeys(o.n_max for o in observed):
        runs = [o for o in observed if o.n_max == n_max and o.together == 1 and o.made]
        made = [o.made for o in runs if o.is_first and o.made]
        drafted, accepted = sum(c.n_drafted for c in made), sum(c.n_accepted for c in made)
        rounds = [r for c in made for r in c.rounds or ()]
        known = drafted > 0 and all(c.rounds is not None for c in made)
        found.append(
            AggregateRecord(
                engine,
                n_max,
                n_requests=len(made),
                total_predicted=sum(len(c.tokens) for c in made),
                total_draft=drafted,
                total_draft_accepted=accepted,
                aggregate_accept_rate=round(accepted / drafted, 4) if drafted else None,
                wall_s_total=round(sum(map(_seconds, runs)) / len({o.order for o in runs} or {0}), 4),
                accepted_by_position=by_position(rounds) if known else None,
                accepted_by_decile=by_decile(rounds, rows) if known else None,
            )
        )
    return found


def _seconds(o: Observation) -> float:
    return o.made.seconds_prefill + o.made.seconds_decode if o.made else 0.0


def drop(before: tuple[int, int], now: tuple[int, int]) -> float:
    """Standard deviations by which the second of two (accepted, verified) has the smaller rate; 0 with no tokens."""
    (a, n), (b, m) = before, now
    if n <= 0 or m <= 0:
        return 0.0
    # A file that was damaged may tell of more accepted than verified.
    rate = min(max((a + b) / (n + m), 0), 1)
    spread = sqrt(rate * (1 - rate) * (1 / n + 1 / m))
    return (a / n - b / m) / spread if spread else 0.0


def examine_acceptance(
    found: Sequence[AggregateRecord],
    observed: Sequence[Observation],
    expected: Sequence[AggregateRecord],
    verified: Sequence[str],
    findings: Findings,
) -> None:
    """Add what is wrong with the acceptance of one engine; `expected` is the reference runtime's on the same prompts.

    `verified` are the things that cannot be the reason, because they were checked.
    """
    checked = "checked, and not the reason: " + "; ".join(verified)
    for record in found:
        subject = f"{record.engine}, n_max {record.n_max}"
        if record.n_max == 0:
            continue
        if not record.total_draft:
            findings.warn("nothing-drafted", subject, *_nothing_drafted(record, observed))
        elif _rate(record) < GATE_RATE and record.total_predicted >= GATE_TOKENS:
            told = f"{record.total_draft_accepted} of {record.total_draft} drafted tokens accepted; {checked}"
            findings.warn("acceptance-gate", subject, told, remedy="nextn bench --probe tells what the head is worth")
        _beside(record, next((e for e in expected if e.n_max == record.n_max), None), findings)
        _decay(record, observed, findings)


def _nothing_drafted(record: AggregateRecord, observed: Sequence[Observation]) -> tuple[str, str]:
    """What is known of the reason, and what helps."""
    longest = max((len(o.tokens) for o in observed if o.n_max == record.n_max), default=0)
    if longest < SHORTEST_DRAFTED:
        message = f"no token was drafted: texts of {counted(longest, 'token')} leave no room for a draft"
        return message, "give a larger -n, or prompts whose texts go on"
    return "no token was drafted", "see that there is a head, and that the engine drafts with it"


def _rate(record: AggregateRecord) -> float:
    return record.total_draft_accepted / record.total_draft


def _beside(record: AggregateRecord, expected: AggregateRecord | None, findings: Findings) -> None:
    """A warning when the reference runtime accepts clearly more of the same head."""
    if expected is None or not record.total_draft or not expected.total_draft:
        return
    rates = (expected.total_draft_accepted, expected.total_draft), (record.total_draft_accepted, record.total_draft)
    if _rate(expected) - _rate(record) > LARGE_DROP and drop(*rates) > SIGMAS:
        message = f"accepts {_rate(record):.1%} of the drafted tokens, the reference runtime {_rate(expected):.1%}"
        remedy = "the head can do more: look for a stale hidden row, wrong positions or another head in the runtime"
        findings.warn("acceptance-low", f"{record.engine}, n_max {record.n_max}", message, remedy)


def _decay(record: AggregateRecord, observed: Sequence[Observation], findings: Findings) -> None:
    """A note when clearly less is accepted late in the context than early."""
    rounds = [
        each
        for o in observed
        if o.n_max == record.n_max and o.together == 1 and o.is_first and o.made
        for each in o.made.rounds or ()
    ]
    parts = [(i, part) for i, part in enumerate(tenths(rounds, context_rows(observed)), 1) if part[1]]
    if len(parts) < 2:
        return
    (first, early), (last, late) = parts[0], parts[-1]
    rates = early[0] / early[1], late[0] / late[1]
    if rates[0] - rates[1] > LARGE_DECAY and drop(early, late) > SIGMAS:
        message = f"{rates[0]:.0%} accepted in tenth {first} of the context, {rates[1]:.0%} in tenth {last}"
        subject = f"{record.engine}, n_max {record.n_max}"
        findings.note("acceptance-decay", subject, f"{message}: {counted(early[1], 'token')} and {late[1]} verified")
