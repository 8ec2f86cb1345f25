"""The certificate: everything that was run and found, enough to run it again, as one JSON object.

Names of fields are the JSON keys; design.md section 3 fixes those that scripts rely on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nextn.runtime.identity.records import decoded, encoded, load_record, named, save_json
from nextn.validators.findings import Finding

FORMAT = "nextn identity 1"
Verdict = Literal["identical", "near_tie", "logic", "nondeterministic"]
Cause = Literal["accept", "rollback", "position", "leak", "width", "token_limit", "unknown"]


@dataclass(frozen=True)
class Divergence:
    """The first place at which two streams differ, and their tokens there; None behind the end of a stream."""

    index: int
    without: int | None
    with_: int | None = named("with")
    without_text: str | None = None
    with_text: str | None = None


@dataclass(frozen=True)
class Margins:
    """Best minus second-best logit of the reference runtime before the token at which streams part, by type."""

    float32: float
    float64: float


@dataclass(frozen=True)
class EngineRecord:
    """An engine, what it says of itself, and what was found about it. Its streams' hash is over all plain runs."""

    name: str
    describe: dict[str, str]
    deterministic: bool
    verdict: Verdict
    cause: Cause | None = None
    stream_sha256: str | None = None


@dataclass(frozen=True)
class PromptRecord:
    """A prompt: its ids, and its text where there is one."""

    name: str
    category: str
    prompt_tokens: int
    tokens: tuple[int, ...]
    text: str | None = None


@dataclass(frozen=True)
class RunRecord:
    """One prompt on one engine in one configuration; `n_max` 0 is without draft.

    `order` is A1, B1, B2 or A2: A without draft, B with it, the first and the second time. `together` is the number of
    sequences that ran at once. `identical` compares with the plain run of the prompt alone, and is None where nothing
    was judged. Runs of a prompt with the same tokens have the same `class_`. `margin` is the float64 one.
    """

    engine: str
    prompt: str
    category: str
    n_max: int
    order: str
    status: str
    message: str
    tokens: tuple[int, ...]
    text: str | None
    stop: str
    n_drafted: int
    n_accepted: int
    class_: int = named("class")
    together: int = 1
    identical: bool | None = None
    first_divergence: int | None = None
    margin: float | None = None
    margins: Margins | None = None
    divergence: Divergence | None = None
    accepted_by_position: tuple[float, ...] | None = None
    accepted_by_decile: tuple[float | None, ...] | None = None
    rounds: int | None = None
    seconds_prefill: float = 0.0
    seconds_decode: float = 0.0


@dataclass(frozen=True)
class AggregateRecord:
    """One configuration of an engine over all prompts, in the names that published draft benchmarks use.

    Parts of accepted tokens by place in the draft and by tenth of the context are over all runs; None where no token
    was verified, or the engine does not say.
    """

    engine: str
    n_max: int
    n_requests: int
    total_predicted: int
    total_draft: int
    total_draft_accepted: int
    aggregate_accept_rate: float | None
    wall_s_total: float
    accepted_by_position: tuple[float, ...] | None = None
    accepted_by_decile: tuple[float | None, ...] | None = None


@dataclass(frozen=True)
class FileRecord:
    """A file that took part."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Certificate:
    """What `nextn identity` found."""

    identical: bool
    verdict: Verdict
    cause: Cause | None
    engines: tuple[EngineRecord, ...]
    prompts: tuple[PromptRecord, ...]
    runs: tuple[RunRecord, ...]
    aggregate: tuple[AggregateRecord, ...]
    findings: tuple[Finding, ...]
    stream_sha256: str | None
    files: tuple[FileRecord, ...]
    versions: dict[str, str]
    settings: dict[str, Any]
    command: tuple[str, ...]
    created: str

    def as_json(self) -> dict[str, Any]:
        """The certificate as `--json` prints it."""
        told = encoded(self)
        return {"format": FORMAT, **told}

    def save(self, path: Path) -> None:
        """Write it to a file; InputError when it cannot be written."""
        save_json(path, self.as_json())


def load_certificate(path: Path) -> Certificate:
    """Read a certificate; InputError, which names the key, for a file that is none or is damaged."""
    return load_record(Certificate, FORMAT, path, "write one with nextn identity -o DIR")


def from_json(told: dict[str, Any]) -> Certificate:
    """A certificate from its JSON object; ValueError, which names the key, when it is damaged."""
    return decoded(Certificate, told)
