"""The report in a real browser: nothing is fetched, nothing overflows, everything is reached by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import certificates
import pytest
from browser import chromium

from nextn.runtime.identity.certificate import Certificate
from nextn.runtime.identity.report.write import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.long]

PHONE, DESK, A4 = 375, 1280, 718  # the last without margins of a centimetre
LONG_NAME = "a/very/long/path/" + "without-any-place-to-break" * 8 + ".gguf"


def worst() -> Certificate:
    """Long names everywhere, many draft lengths, failed runs, all kinds of differences, markup in every text."""
    told = certificates.differing("logic", "rollback").as_json()
    for each in told["runs"]:
        each["prompt"] = each["prompt"].replace("code_cpp_1", LONG_NAME)
        each["category"] = each["category"].replace("code_cpp", LONG_NAME)
        each["text"] = f"<script>document.title = 'run'</script>{each['text']}{'x' * 3000}"
        each["n_max"] += 8 * (each["n_max"] == 5)
    told["runs"] += [certificates.run("p", n, n_drafted=7, n_accepted=n % 7, engine=LONG_NAME) for n in range(12)]
    told["runs"].append(certificates.run("p", 3, status="segfault", message=LONG_NAME, engine="llama-cpp"))
    told["files"].append({"path": LONG_NAME, "sha256": "0" * 64})
    told["findings"].append({"severity": "error", "rule": "r", "subject": LONG_NAME, "message": LONG_NAME * 3})
    told["command"].append(LONG_NAME)
    return certificates.certificate(**told)


CERTIFICATES: dict[str, Certificate] = {
    "empty": certificates.certificate(),
    "identical": certificates.certificate(**certificates.typical(prompts=4)),
    "near-tie": certificates.differing("near_tie", "width"),
    "worst": worst(),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    return {name: write_report(told, folder / name)[0] for name, told in CERTIFICATES.items()}


class Watched:
    """A page, what it asked the network for, and what it complained about."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(path.as_uri())
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")


@pytest.fixture
def opened(browser: Browser, reports: dict[str, Path]) -> Iterator[Any]:
    pages = []

    def get(name: str, width: int, mode: str = "light") -> Watched:
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=mode)  # type: ignore[arg-type]
        pages.append(page)
        return Watched(page, reports[name])

    yield get
    for page in pages:
        page.close()


@pytest.mark.parametrize(("name", "width", "mode"), list(product(CERTIFICATES, (PHONE, DESK), ("light", "dark"))))
def test_page_shows_without_network_or_overflow(name: str, width: int, mode: str, opened: Any, tmp_path: Path) -> None:
    watched: Watched = opened(name, width, mode)
    page = watched.page
    assert [url for url in watched.requests if not url.startswith("data:")] == [page.url]
    assert watched.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    # What sticks out of the window must be in something that scrolls.
    outside = page.evaluate(
        "[...document.querySelectorAll('body *')].filter(one => !one.closest('.scroll, svg, .skip')"
        " && one.getBoundingClientRect().right > innerWidth + 0.5).map(one => one.outerHTML.slice(0, 80))"
    )
    assert outside == []
    assert page.title().endswith(": nextn identity")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(18, 21, 26)" if mode == "dark" else "rgb(246, 247, 249)")
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_letters_of_charts_stay_inside_and_readable_on_a_phone(opened: Any) -> None:
    page = opened("worst", PHONE).page
    sticking_out = page.evaluate(
        "[...document.querySelectorAll('svg text')].filter(one => {"
        " const inner = one.getBoundingClientRect(), outer = one.closest('svg').getBoundingClientRect();"
        " return inner.left < outer.left - 1 || inner.right > outer.right + 1 || inner.bottom > outer.bottom + 1;"
        "}).map(one => one.textContent)"
    )
    assert sticking_out == []
    assert page.evaluate("Math.min(...[...document.querySelectorAll('svg')].map(one => one.clientWidth)) / 400") > 0.7


def test_keyboard_reaches_everything(opened: Any) -> None:
    page = opened("worst", PHONE).page
    wanted = page.evaluate("document.querySelectorAll('a[href], summary, .scroll').length")
    reached = []
    for _ in range(wanted):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "(() => { const one = document.activeElement, style = getComputedStyle(one);"
                " one.dataset.seen = '1';"
                " return [one.matches('a[href], summary, .scroll'), style.outlineStyle,"
                " parseFloat(style.outlineWidth)];"
                "})()"
            )
        )
    assert reached == [[True, "solid", 3]] * wanted
    assert page.evaluate("document.querySelectorAll('a[href], summary, .scroll').length") == page.evaluate(
        "document.querySelectorAll('[data-seen]').length"
    )


def test_the_skip_link_goes_to_the_content(opened: Any) -> None:
    page = opened("identical", DESK).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_a_closed_part_opens_with_the_keyboard(opened: Any) -> None:
    page = opened("identical", DESK).page
    page.evaluate("document.querySelector('details').open = false")
    page.focus("summary")
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector('details').open") is True


def test_a_screen_reader_hears_the_parts_and_the_charts(opened: Any) -> None:
    page = opened("near-tie", DESK).page
    for role in ("main", "navigation", "banner", "contentinfo"):
        assert page.get_by_role(role).count() == 1
    for name in ("Summary", "Acceptance", "Speed", "Differences", "Findings", "Runs"):
        assert page.get_by_role("heading", name=name, exact=True, level=2).count() == 1
        assert page.get_by_role("region", name=name, exact=True).count() == 1
    chart = page.get_by_role("img", name="Accepted part of the drafted tokens by category, llama-cpp")
    assert chart.count() == 1


def test_what_a_model_says_does_not_run(opened: Any) -> None:
    page = opened("worst", DESK).page
    assert page.title() == "Logic: nextn identity"
    assert page.get_by_text("<script>document.title = 'run'</script>").count() > 0


def test_the_page_prints_in_light_colours_and_whole(opened: Any, tmp_path: Path) -> None:
    page = opened("near-tie", DESK, "dark").page
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = false")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.get_by_role("navigation").is_hidden()
    assert page.get_by_text("sunny").first.is_visible()
    page.set_viewport_size({"width": A4, "height": 1000})
    too_wide = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth)"
        ".map(one => one.getAttribute('aria-label'))"
    )
    assert too_wide == []
    assert page.pdf(path=tmp_path / "page.pdf", format="A4").startswith(b"%PDF")
