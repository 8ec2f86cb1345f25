"""The page: one file that needs no network and has no script; every text of a certificate is escaped."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from nextn.runtime.identity.certificate import Certificate
from nextn.runtime.identity.report.differences import classes, configuration, differences
from nextn.runtime.identity.report.figures import figures
from nextn.runtime.identity.report.words import CAUSES, VERDICTS

# More than these are counted, not shown: the page is for reading, the certificate has everything.
MOST_DIFFERENCES, MOST_FAILURES, MOST_BARS, MOST_CHARACTERS = 50, 50, 24, 4000
# Characters that a reader does not see, or that reorder others; tab and newline stay.
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def page(certificate: Certificate) -> str:
    """The whole page of a certificate; the same for the same certificate."""
    environment = Environment(
        loader=PackageLoader("nextn.runtime.identity.report"),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "cut": cut,
        "seconds": seconds,
        "plain": plain,
        "shell": shlex.join,
    }
    engines = figures(certificate)
    return environment.get_template("report.html").render(
        certificate=certificate,
        verdict=VERDICTS[certificate.verdict],
        verdicts=VERDICTS,
        causes=CAUSES,
        judged=[run for run in certificate.runs if run.identical is not None and (run.n_max, run.together) != (0, 1)],
        failed=[run for run in certificate.runs if run.status != "ok"],
        engines=engines,
        drafted=any(each.lengths for each in engines),
        timed=any(each.speeds for each in engines),
        differences=differences(certificate),
        classes=classes(certificate),
        configuration=configuration,
        tokens_per_second=tokens_per_second,
        most={"differences": MOST_DIFFERENCES, "failures": MOST_FAILURES, "bars": MOST_BARS},
    )


def _visible(value: Any) -> Any:
    """Hidden characters by their number, so that nothing is shown other than it is; overlong texts end early."""
    if type(value) is not str:
        return value
    shown = HIDDEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", value)
    return shown if len(shown) <= MOST_CHARACTERS else f"{shown[:MOST_CHARACTERS]}… {len(shown)} characters"


def percent(part: float | None) -> str:
    """A part of one in percent; a dash where there is none."""
    return "–" if part is None else f"{100 * part:.1f}"


def cut(text: str, most: int) -> str:
    """The beginning of a text that has room for so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def seconds(value: float) -> str:
    """Seconds, with as many digits as matter."""
    return f"{value:.0f} s" if value >= 100 else f"{value:.3g} s"


def plain(value: Any) -> str:
    """A setting for people: lists without brackets, and the rest as JSON where it is no text."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value))
    return value if isinstance(value, str) else json.dumps(value)


def tokens_per_second(run: Any) -> str:
    """The decoding speed of one run, whose first token came with the prompt."""
    behind = len(run.tokens) - 1
    return f"{behind / run.seconds_decode:.1f}" if behind > 0 and run.seconds_decode > 0 else "–"
