"""The model card: what nextn says about the files of a repository, kept apart from what people wrote there.

Ours is what stands between two markers, in the text and in the front matter; the rest is kept as it is. What the card
says of files that are not uploaded this time is taken from a comment that it carries.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from nextn import __version__
from nextn.convert.hub.examples import examples
from nextn.convert.hub.facts import RUNTIME, Base, Facts, PairRow, Proof, Row, Target
from nextn.convert.metadata import CARD
from nextn.gguf_schema.architecture import Role
from nextn.gguf_schema.errors import InputError

if TYPE_CHECKING:
    from jinja2 import Template

T = TypeVar("T")
BEGIN, END = "<!-- nextn: begin -->", "<!-- nextn: end -->"
DATA, DATA_END = "<!-- nextn: data ", " -->"
FRONT_BEGIN, FRONT_END = "# nextn: begin", "# nextn: end"
FENCE = "---"
TEMPLATE = "card.md.jinja"
REMEDY = "correct it on the hub, or remove what is between the markers"

MEANINGS = {
    Role.COMBINED: "trunk and head in one file; drafts for itself",
    Role.TRUNK: "the model without its head",
    Role.MTP: "the head with embeddings and output of its own: a draft for the trunk or the combined file",
    Role.MTP_SHARED: "the head alone, which borrows embeddings and output from the file it drafts for",
}


def write_card(existing: str | None, facts: Facts, repo_id: str) -> str:
    """The card with ours renewed; a new one when there is none. InputError when ours cannot be told from the rest."""
    text = (existing or "").removeprefix("\ufeff")
    front, body = _parts(text)
    if existing is None or not body.strip():
        body = f"# {repo_id.split('/')[-1]}\n"
    ours = f"{BEGIN}\n{_comment(facts)}\n\n{_rendered(facts, repo_id)}{END}"
    before, _, after = _around(body)
    if before and not before.endswith("\n\n"):
        before = before.rstrip("\n") + "\n\n"
    return f"{_front(front, facts)}{before}{ours}{after or chr(10)}"


def read_facts(existing: str | None) -> Facts:
    """What the card of an earlier upload says; InputError when that is damaged."""
    _, body = _parts((existing or "").removeprefix("\ufeff"))
    _, ours, _ = _around(body)
    if DATA not in ours:
        return Facts()
    try:
        told = json.loads(ours.partition(DATA)[2].partition(DATA_END)[0])
        return Facts(
            _each(told, "rows", _row),
            _each(told, "pairs", lambda pair: PairRow(**pair)),
            _each(told, "proofs", _proof),
            Base(**told["base"]) if told["base"] else None,
            told["license"],
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _bad(f"the comment with nextn's data is damaged: {error}") from error


def _each(told: Mapping[str, Any], key: str, make: Callable[[dict[str, Any]], T]) -> tuple[T, ...]:
    return tuple(make(one) for one in told[key])


def _row(told: dict[str, Any]) -> Row:
    return Row(**{**told, "target": Target(**told["target"]) if told["target"] else None})


def _proof(told: dict[str, Any]) -> Proof:
    return Proof(**{**told, "n_max": tuple(told["n_max"]), "files": tuple(told["files"])})


def _comment(facts: Facts) -> str:
    """The facts as a comment; two hyphens would end it."""
    return DATA + json.dumps(asdict(facts)).replace("--", "\\u002d\\u002d") + DATA_END


def _parts(text: str) -> tuple[list[str], str]:
    """The lines of the front matter without its fences, and the body."""
    lines = text.splitlines(keepends=True)
    if not lines or lines[0].rstrip() != FENCE:
        return [], text
    end = next((index for index, line in enumerate(lines[1:], 1) if line.rstrip() == FENCE), None)
    if end is None:
        raise _bad("its front matter does not end")
    return lines[1:end], "".join(lines[end + 1 :])


def _around(body: str) -> tuple[str, str, str]:
    """What is before ours, ours without its markers, and what is behind; the whole is before where there is none."""
    if body.count(BEGIN) == 0 and body.count(END) == 0:
        return body, "", ""
    before, _, rest = body.partition(BEGIN)
    ours, end, after = rest.partition(END)
    if not end or BEGIN in rest or END in before or END in after:
        raise _bad(f"the markers {BEGIN} and {END} are not there once each, in this order")
    return before, ours, after


def _front(lines: Iterable[str], facts: Facts) -> str:
    """The front matter: what people wrote as it is, and those of our keys that they did not set."""
    human, ours = [], False
    for line in lines:
        if line.strip() == FRONT_BEGIN:
            ours = True
        if not ours:
            human.append(line if line.endswith("\n") else line + "\n")
        if line.strip() == FRONT_END:
            ours = False
    if ours:
        raise _bad(f"in its front matter, {FRONT_BEGIN} has no {FRONT_END}")
    try:
        keys = yaml.safe_load("".join(human)) or {}
    except yaml.YAMLError as error:
        raise _bad(f"its front matter is no YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(keys, dict):
        raise _bad("its front matter is no list of keys")
    added = {key: value for key, value in _our_keys(facts).items() if key not in keys}
    if added:
        human += [f"{FRONT_BEGIN}\n", yaml.safe_dump(added, sort_keys=False, allow_unicode=True), f"{FRONT_END}\n"]
    return f"{FENCE}\n{''.join(human)}{FENCE}\n" if human else ""


def _our_keys(facts: Facts) -> dict[str, Any]:
    keys: dict[str, Any] = {"library_name": "gguf", "tags": ["gguf", "mtp", "speculative-decoding"]}
    if facts.license:
        keys["license"] = facts.license
    if facts.base:
        keys |= {"base_model": facts.base.id, "base_model_relation": "quantized"}
    return keys


def _rendered(facts: Facts, repo_id: str) -> str:
    roles = {row.role for row in facts.rows}
    rendered = _template().render(
        rows=facts.rows,
        roles=[(role, meaning) for role, meaning in MEANINGS.items() if role in roles],
        base=facts.base,
        sources=[row for row in facts.rows if row.target],
        pairs=facts.pairs,
        runtime=RUNTIME,
        examples=list(examples(facts, repo_id)),
        proofs=facts.proofs,
        version=__version__,
    )
    return re.sub(r"\n{3,}", "\n\n", rendered)


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        trim_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = _cell
    return environment.get_template(TEMPLATE)


def _cell(text: str) -> Any:
    """Text that stays within a cell of a table, whatever it is."""
    from markupsafe import Markup

    escaped = html.escape(" ".join(str(text).split()), quote=False)
    return Markup(escaped.replace("|", "&#124;").replace("`", "&#96;"))  # noqa: S704 - escaped in the line above


def _bad(message: str) -> InputError:
    return InputError("bad-card", message, subject=f"{CARD} on the hub", remedy=REMEDY)
