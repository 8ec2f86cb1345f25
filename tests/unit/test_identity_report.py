"""The report of a certificate: numbers computed by hand, every verdict, hostile texts, size, colours."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import certificates
import pytest
from families import ROOT

from nextn.gguf_schema.errors import InputError
from nextn.runtime.identity.certificate import Cause, Certificate, Verdict, from_json
from nextn.runtime.identity.report import differences, words
from nextn.runtime.identity.report.figures import Share, figures
from nextn.runtime.identity.report.html import page
from nextn.runtime.identity.report.write import write_report

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;{{ 7 * 7 }}{% raw %}]]>"
VOID = {"meta", "link", "br", "img", "circle", "path", "rect"}


class Page(HTMLParser):
    """A page's elements, in order; fails on one that is not closed, or closed in another's place."""

    def __init__(self, told: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(told)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute of {tag} is there twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def all(self, key: str) -> list[str]:
        return [value for _, attributes in self.elements if (value := attributes.get(key)) is not None]


def hostile() -> Certificate:
    """A certificate all of whose texts try to become something else."""

    def spoilt(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: spoilt(part, name) for name, part in value.items()}
        if isinstance(value, list):
            return [spoilt(part, key) for part in value]
        fixed = key in {"format", "verdict", "cause", "severity", "status", "engine", "prompt", "category", "name"}
        return f"{EVIL}{value}" if isinstance(value, str) and not fixed else value

    told = spoilt(certificates.differing("logic", "accept").as_json())
    for each in (*told["runs"], *told["prompts"], *told["aggregate"], *told["engines"]):
        for key in each.keys() & {"engine", "prompt", "category", "name"}:
            each[key] = EVIL + each[key]
    return from_json(told)


@pytest.mark.parametrize("verdict", get_args(Verdict))
@pytest.mark.parametrize("cause", [None, *get_args(Cause)])
def test_every_verdict_and_cause_is_told(verdict: str, cause: Cause | None) -> None:
    told = Page(page(certificates.certificate(verdict=verdict, cause=cause))).words
    assert words.VERDICTS[verdict].title in told  # type: ignore[index]
    assert cause is None or f"{cause} , {words.CAUSES[cause]}" in told


@pytest.mark.parametrize(
    ("first", "second", "length"),
    [
        ("", "", 0),
        ("a", "", 0),
        ("a", "a", 1),
        ("ab", "ac", 1),
        ("abcdef", "abc", 3),
        ("xbc", "abc", 0),
        ("aaab", "aaac", 3),
    ],
)
def test_the_common_beginning(first: str, second: str, length: int) -> None:
    assert differences.common(first, second) == length


@pytest.mark.parametrize(
    "certificate",
    [
        certificates.certificate(),
        certificates.certificate(runs=[certificates.run(status="abort", message="no", tokens=(), text=None)]),
        certificates.certificate(runs=[certificates.run(), certificates.run(n_max=9, n_drafted=0, seconds_decode=0.0)]),
        certificates.certificate(**certificates.typical()),
        certificates.differing("near_tie", "width"),
        hostile(),
    ],
    ids=["empty", "aborted", "odd", "typical", "differing", "hostile"],
)
def test_the_page_is_sound(certificate: Certificate) -> None:
    read = Page(page(certificate))
    names = Counter(tag for tag, _ in read.elements)
    assert names["script"] == names["img"] == names["iframe"] == names["object"] == 0
    assert names["main"] == names["h1"] == names["nav"] == names["title"] - names["svg"] == 1
    ids = read.all("id")
    assert len(ids) == len(set(ids))
    assert {name for told in read.all("aria-labelledby") for name in told.split()} <= set(ids)
    assert {target.removeprefix("#") for target in read.all("href")} - {"data:,"} <= set(ids)
    assert not [name for _, attributes in read.elements for name in attributes if name.startswith("on")]
    levels = [int(tag[1]) for tag, _ in read.elements if re.fullmatch("h[1-6]", tag)]
    assert all(below <= above + 1 for above, below in pairwise(levels))


def test_what_a_model_says_stays_text() -> None:
    told = page(hostile())
    assert "<script" not in told
    assert "&lt;script&gt;alert(1)" in told
    assert "{{ 7 * 7 }}" in told
    assert EVIL in "".join(Page(told).text)


def test_hidden_characters_are_shown_by_their_number(tmp_path: Path) -> None:
    """A name may have bytes that are no UTF-8, or turn the reading direction round to look like another."""
    files = [{"path": "model\udcff\u202efug.\x00gguf\r", "sha256": "00"}]
    (path,) = write_report(certificates.certificate(files=files), tmp_path)
    assert "model⟨U+DCFF⟩⟨U+202E⟩fug.⟨U+0000⟩gguf⟨U+000D⟩" in path.read_text(encoding="utf-8")


def test_acceptance_is_over_all_drafted_tokens_of_a_category() -> None:
    runs = [
        certificates.run("a", 2, n_drafted=10, n_accepted=9),
        certificates.run("b", 2, n_drafted=30, n_accepted=3),
        certificates.run("c", 2, n_drafted=8, n_accepted=4, category="translation"),
        certificates.run("d", 2, n_drafted=99, n_accepted=99, status="timeout"),
    ]
    (engine,) = figures(certificates.certificate(runs=runs))
    assert engine.by_category == {"code_python": {2: Share(12, 40)}, "translation": {2: Share(4, 8)}}
    assert [share[2].part for share in engine.by_category.values()] == [0.3, 0.5]
    assert "30.0" in Page(page(certificates.certificate(runs=runs))).words


def test_speed_leaves_out_first_tokens_and_runs_of_several_sequences() -> None:
    runs = [
        certificates.run("a", 0, (1, 2, 3, 4), seconds_decode=1.5),
        certificates.run("b", 0, (1, 2), seconds_decode=0.5),
        certificates.run("a", 3, (1, 2, 3, 4), seconds_decode=0.5),
        certificates.run("a", 3, (1, 2, 3, 4), seconds_decode=50.0, together=4),
    ]
    (engine,) = figures(certificates.certificate(runs=runs))
    assert [(speed.n_max, speed.tokens, speed.per_second, speed.ratio) for speed in engine.speeds] == [
        (0, 4, 2.0, 1.0),
        (3, 3, 6.0, 3.0),
    ]


def test_a_difference_shows_both_streams_around_the_first_token_that_differs() -> None:
    (found,) = differences.differences(certificates.differing("near_tie", "width"))
    assert (found.index, found.engine, found.prompt) == (24, "llama-cpp", "code_python_1")
    assert found.configurations == ("draft of 3", "draft of 5")
    assert (found.first.ids.at, found.second.ids.at) == ("124", "900")
    assert found.first.ids.before == found.second.ids.before == " ".join(map(str, range(112, 124)))
    assert (found.first.ids.left_out_before, found.first.ids.left_out_after) == (12, 11)
    assert found.first.text is not None
    assert found.second.text is not None
    assert (found.first.text.at, found.second.text.at) == ("snowy", "sunny")
    assert found.first.text.before == found.second.text.before == "On Wednesday it will be "


def test_a_stream_that_ends_early_differs_at_its_end() -> None:
    runs = [
        certificates.run(text="abcd"),
        certificates.run(n_max=2, tokens=(1, 2), text="ab", stop="eos", identical=False, **{"class": 2}),
    ]
    (found,) = differences.differences(certificates.certificate(runs=runs))
    assert (found.index, found.first.ids.at, found.second.ids.at) == (2, "3", None)
    assert (found.second.text, found.second.stop) == (differences.Cut(0, "ab", None, "", 0), "eos")
    assert "(end)" in page(certificates.certificate(runs=runs))


def test_a_repetition_that_differs_is_shown_although_nothing_was_judged() -> None:
    runs = [
        certificates.run(n_max=2, identical=None),
        certificates.run(n_max=2, order="B2", tokens=(1, 9), identical=None, **{"class": 2}),
    ]
    (found,) = differences.differences(certificates.certificate(verdict="nondeterministic", runs=runs))
    assert (found.index, found.first.title, found.second.title) == (1, "draft of 2 (first)", "draft of 2 (again)")


def test_equal_outputs_are_listed_by_draft_length() -> None:
    found = differences.classes(certificates.differing("near_tie", "width"))
    assert [(each.prompt, each.engine, each.by_length) for each in found] == [
        ("code_python_1", "reference", {0: (1,), 1: (1,), 2: (1,), 3: (1,), 5: (1,)}),
        ("code_python_1", "llama-cpp", {0: (1,), 1: (1,), 2: (1,), 3: (2,), 5: (2,)}),
    ]


def test_a_thousand_runs_stay_small() -> None:
    told = certificates.typical(prompts=63)
    assert len(told["runs"]) == 1008
    for number, each in enumerate(told["runs"]):
        if each["n_max"]:
            long = list(range(500))
            changed = {
                "tokens": [*long, number],
                "text": "x" * 20_000 + str(number),
                "class": number,
                "identical": False,
            }
            each |= changed
    read = page(certificates.certificate(**told))
    assert len(read.encode()) < 1_000_000
    assert "more are in certificate.json" in read


def test_the_same_certificate_gives_the_same_files(tmp_path: Path) -> None:
    certificate = certificates.differing("near_tie", "width")
    written = [write_report(certificate, tmp_path / name) for name in ("a", "b")]
    names = ["report.html", "acceptance.png", "positions.png", "deciles.png", "speed.png"]
    assert [path.name for path in written[0]] == names
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(names)
    assert [path.read_bytes() for path in written[0]] == [path.read_bytes() for path in written[1]]


def test_a_category_that_looks_like_a_formula_is_drawn_as_it_is(tmp_path: Path) -> None:
    runs = [certificates.run(n_max=1, category="$\\frac{$ 数学", engine="$x^{$")]
    assert len(write_report(certificates.certificate(runs=runs), tmp_path)) == 3


def test_a_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(InputError, match="taken: cannot be written"):
        write_report(certificates.certificate(), tmp_path / "taken")


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_a_missing_package_is_named_with_its_remedy(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith("nextn.runtime.identity.report.")]:
        if module.endswith((".html", ".plots")):
            monkeypatch.delitem(sys.modules, module)
    for module in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError) as error:
        write_report(certificates.certificate(), tmp_path / "new")
    assert package in error.value.message
    assert error.value.remedy == "install the extra 'report': pip install '.[report]' in the clone of nextn"
    assert not (tmp_path / "new").exists()


STYLE = (ROOT / "runtime/identity/report/templates/style.css").read_text(encoding="utf-8")
TEXTS = [
    *((ink, paper) for ink in ("text", "soft", "link") for paper in ("page", "card")),
    *((ink, "code") for ink in ("text", "soft")),
    *((tone, paper) for tone in ("good", "warn", "bad") for paper in (f"{tone}-back", "card")),
    *(("text", f"{tone}-back") for tone in ("good", "warn", "bad")),
]
SIGNS = [("focus", "page"), ("focus", "card"), *((f"s{number}", "card") for number in range(6))]


def colours(mode: str) -> dict[str, str]:
    """The variables of a mode; what dark or print do not name is as in light."""
    light, dark, printed = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    found: dict[str, str] = {}
    for block in {"light": [light], "dark": [light, dark], "print": [light, printed]}[mode]:
        found |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
    return found


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_is_computed_as_wcag_does() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # the known grey that just fails


@pytest.mark.parametrize("mode", ["light", "dark", "print"])
def test_texts_and_signs_have_the_contrast_of_wcag_aa(mode: str) -> None:
    found = colours(mode)
    ratios = {pair: contrast(found[pair[0]], found[pair[1]]) for pair in (*TEXTS, *SIGNS)}
    assert {pair: ratio for pair, ratio in ratios.items() if ratio < (4.5 if pair in TEXTS else 3.0)} == {}


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_report(certificates.certificate(), tmp_path)
    assert list(tmp_path.iterdir()) == []
