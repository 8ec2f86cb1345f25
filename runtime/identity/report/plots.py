"""The charts of the page as PNG files, for places that take pictures."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

from nextn.runtime.identity.certificate import Certificate
from nextn.runtime.identity.report.figures import EngineFigures, figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOTS_PER_INCH = 120
MOST_CATEGORIES, MOST_LETTERS = 24, 28
COLOURS = ("#0b6bcb", "#b34700", "#14804a", "#8e3bb5", "#a3195b", "#5b6470")
MARKS = "os^DXP"
# A category may hold what matplotlib would take for a formula.
SETTINGS: Any = {
    "text.parse_math": False,
    "font.size": 10,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
}


@dataclass(frozen=True)
class Plot:
    """One picture: the numbers of an engine that it needs, and what draws them."""

    needs: Callable[[EngineFigures], object]
    draw: Callable[[Axes, EngineFigures], None]
    title: str


def plots(certificate: Certificate) -> dict[str, bytes]:
    """PNG files by name; only those for which there are numbers."""
    engines = figures(certificate)
    made = {}
    # Characters that the bundled font lacks are drawn as boxes; that is no reason to warn.
    with mpl.rc_context(SETTINGS), warnings.catch_warnings(action="ignore"):
        for name, plot in PLOTS.items():
            if shown := [each for each in engines if plot.needs(each)]:
                made[name] = _picture(shown, plot)
    return made


def _picture(engines: Sequence[EngineFigures], plot: Plot) -> bytes:
    """The engines under each other."""
    figure = Figure(figsize=(8, 4 * len(engines)), dpi=DOTS_PER_INCH, layout="constrained")
    for axes, engine in zip(figure.subplots(len(engines), squeeze=False)[:, 0], engines, strict=True):
        axes.set_title(f"{plot.title}, {engine.engine[:MOST_LETTERS]}")
        plot.draw(axes, engine)
    file = io.BytesIO()
    # Without the program's version, so that only the numbers decide about the bytes.
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _acceptance(axes: Axes, engine: EngineFigures) -> None:
    categories = list(engine.by_category)[:MOST_CATEGORIES]
    height = 0.8 / len(engine.lengths)
    for index, n_max in enumerate(engine.lengths):
        shares = [engine.by_category[category][n_max].part or 0.0 for category in categories]
        places = [place + height * (index - (len(engine.lengths) - 1) / 2) for place in range(len(categories))]
        axes.barh(places, [100 * part for part in shares], height, color=_colour(index), label=f"n_max {n_max}")
    axes.set_yticks(range(len(categories)), [category[:MOST_LETTERS] for category in categories])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("accepted, %")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def _lines(axes: Axes, series: Mapping[int, Sequence[float | None]], what: str) -> None:
    for index, (n_max, parts) in enumerate(series.items()):
        values = [float("nan") if part is None else 100 * part for part in parts]
        mark = MARKS[index % len(MARKS)]
        axes.plot(range(1, len(parts) + 1), values, marker=mark, color=_colour(index), label=f"n_max {n_max}")
    axes.set_xticks(range(1, max(map(len, series.values())) + 1))
    axes.set_ylim(0, 105)
    axes.set_xlabel(what)
    axes.set_ylabel("accepted, %")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def _speed(axes: Axes, engine: EngineFigures) -> None:
    names = [f"n_max {speed.n_max}" if speed.n_max else "no draft" for speed in engine.speeds]
    bars = axes.barh(names, [speed.per_second for speed in engine.speeds], color=COLOURS[0])
    told = [f" {speed.per_second:.1f}" + (f" ({speed.ratio:.2f}×)" if speed.ratio else "") for speed in engine.speeds]
    axes.bar_label(bars, told)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlabel("tokens a second")


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


PLOTS = {
    "acceptance.png": Plot(lambda each: each.by_category, _acceptance, "Acceptance by category"),
    "positions.png": Plot(
        lambda each: each.by_position,
        lambda axes, each: _lines(axes, each.by_position, "position in the draft"),
        "Acceptance by position",
    ),
    "deciles.png": Plot(
        lambda each: each.by_decile,
        lambda axes, each: _lines(axes, each.by_decile, "tenth of the context"),
        "Acceptance by context",
    ),
    "speed.png": Plot(lambda each: each.speeds, _speed, "Speed"),
}
