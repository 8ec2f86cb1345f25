"""What the words of a certificate mean, for readers of the report; docs/identity.md says the same at length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nextn.runtime.identity.certificate import Cause, Verdict


@dataclass(frozen=True)
class Word:
    """A verdict for people: a colour, a sign and a title, so that the colour is never alone, and a sentence."""

    tone: Literal["good", "warn", "bad"]
    sign: str
    title: str
    meaning: str


VERDICTS: dict[Verdict, Word] = {
    "identical": Word(
        "good", "✓", "Identical", "Every run with a draft gave exactly the tokens of the run without one."
    ),
    "near_tie": Word(
        "warn",
        "≈",
        "Near tie",
        "Some runs with a draft differ. Where they first do, the two best tokens are so close that rounding decides.",
    ),
    "logic": Word(
        "bad",
        "✗",
        "Logic",
        "Drafting changed the output where the model's choice is clear, or made runs fail.",
    ),
    "nondeterministic": Word(
        "bad",
        "?",
        "Nondeterministic",
        "The same run gave different tokens when it was repeated, so identity could not be judged.",
    ),
}

CAUSES: dict[Cause, str] = {
    "accept": "drafted tokens are accepted, or left out, against the trunk's own choice",
    "rollback": "something of rejected drafts is left in the state",
    "position": "rows are computed at wrong positions",
    "leak": "sequences that run together change each other",
    "width": "a row is computed otherwise when more rows are computed beside it",
    "token_limit": "the end of a text, or the limit of tokens, is handled otherwise",
    "unknown": "no known pattern fits",
}
