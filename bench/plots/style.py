"""One look for all figures, whatever matplotlibrc, backend or display the machine has."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 8.3  # at 100 dpi about the width of a README
# Okabe and Ito's colours, which stay apart for colour-blind eyes; their yellow is too faint on white.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
GREY, FAINT = "#5F5F5F", "#D9D9D9"
CYCLE = (ORANGE, SKY, GREEN, BLUE, VERMILLION, PURPLE, GREY)
ONE_RANK, SEVERAL_RANKS = SKY, ORANGE

_SETTINGS = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that it is the same everywhere
    "font.size": 9.5,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "svg.fonttype": "path",
    "svg.hashsalt": "ddp-side-by-side",  # else the ids within an SVG change from run to run
}


class NoMatplotlib(Exception):
    """matplotlib is not installed, or does not import. One line."""


def load() -> None:
    """Import matplotlib; raises NoMatplotlib. No backend is chosen: Agg alone draws the figures."""
    # A notebook's or a desktop's MPLBACKEND names a package that need not be there: the import would fail.
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise NoMatplotlib(f"matplotlib cannot be imported: {error}") from None
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend


@contextmanager
def style() -> Iterator[None]:
    """Draw and save within it."""
    import matplotlib

    keep = {"backend", "backend_fallback", "interactive", "toolbar", "timezone"}
    defaults = {key: value for key, value in matplotlib.rcParamsDefault.items() if key not in keep}
    with matplotlib.rc_context({**defaults, **_SETTINGS}):
        yield


def new_figure(height_in: float) -> "Figure":
    """An empty figure of README width on an Agg canvas."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
    FigureCanvasAgg(figure)
    return figure


def rows_height(rows: int) -> float:
    """The height of a figure with one line for each variant, in inches."""
    return 1.55 + (0.43 if rows <= 10 else 0.35) * max(rows, 3)


def name_rows(axes: "Axes", labels: list[str], notes: list[str | None]) -> None:
    """One named row for each label from the top down, a remark in small type below its name."""
    names = [f"{label}\n" if note else label for label, note in zip(labels, notes, strict=True)]
    axes.set_yticks(range(len(labels)), names, color=BLACK, fontsize=10, linespacing=1.15)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    for row, note in enumerate(notes):
        if note:
            place = {"xy": (0, row), "xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
            axes.annotate(note, xytext=(-4, -3.5), ha="right", va="top", fontsize=8, color=GREY, **place)


def columns(axes: "Axes", heads: list[tuple[str, str]], rows: list[list[str] | None]) -> None:
    """Values right of the axes, one line for each row: (head, colour) of each column, its cells below."""
    at, width = axes.get_yaxis_transform(), 0.078 * WIDTH_IN / axes.figure.get_figwidth()
    for column, (head, color) in enumerate(heads):
        x = 1 + width * (column + 1)
        axes.text(x, -0.72, head, transform=at, ha="right", va="bottom", fontsize=8.5, color=color)
        for row, cells in enumerate(rows):
            if cells:
                axes.text(x, row, cells[column], transform=at, ha="right", va="center", fontsize=9)


def rank_key(sizes: set[int]) -> list[tuple[str, str]]:
    """What the colours of bars mean, for a `subtitle`."""
    several = " or ".join(str(size) for size in sorted(sizes) if size > 1)
    parts = [("■ one process", ONE_RANK)] if 1 in sizes else []
    return [*parts, (f"■ {several} ranks", SEVERAL_RANKS)] if several else parts


def rank_color(ranks: int) -> str:
    return ONE_RANK if ranks == 1 else SEVERAL_RANKS


def say_missing(axes: "Axes", row: int, reason: str) -> None:
    """What stands in a row instead of a mark when there is no number: never a bar of height 0."""
    at = axes.get_yaxis_transform()
    axes.text(0.01, row, reason, transform=at, va="center", color=VERMILLION, style="italic", fontsize=9)


def subtitle(axes: "Axes", parts: list[tuple[str, str]]) -> None:
    """A line under the title of (text, colour) parts: it explains the marks in their own colours."""
    from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea

    areas = [TextArea(text, textprops={"color": color, "fontsize": 9}) for text, color in parts]
    box = HPacker(children=areas, align="baseline", pad=0, sep=9)
    anchored = AnchoredOffsetbox(
        "lower left",
        child=box,
        frameon=False,
        bbox_to_anchor=(0, 1),
        bbox_transform=axes.transAxes,
        pad=0,
        borderpad=0.25,
    )
    axes.add_artist(anchored)
    anchored.set_in_layout(False)
    axes.title.set_position((0, 1))
    axes.set_title(axes.get_title(loc="left"), pad=22)
