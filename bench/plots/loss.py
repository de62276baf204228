"""Loss curves over each other, and how far each lies from that of `single`, step by step."""

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from bench import derive
from bench.markdown import code, listing
from bench.plots import style
from bench.report.collect import Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALT = "Training loss of each variant over the steps, and the difference of each curve from that of single"
_WINDOW = 25
_POINTS = 400
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))


def data(job: Job) -> dict[str, Any] | None:
    """Curves that are equal in every bit are one, with the names of all; the last repeat stands for each.

    A run with other steps than the reference (without one: than most runs) is another training and left out.
    """
    if not job.timed:
        return None
    curves: dict[bytes, dict[str, Any]] = {}
    made = {entry.label: entry.last["steps"] for entry in job.timed}
    wanted = job.reference.last["steps"] if job.reference else Counter(made.values()).most_common(1)[0][0]
    for entry in sorted(job.timed, key=lambda entry: entry is not job.reference):
        if made[entry.label] != wanted:
            continue
        curve = derive.loss_curve(entry.raws[-1])
        group = curves.setdefault(curve.tobytes(), {"labels": [], "curve": curve})
        group["labels"].append(entry.label)
    groups = list(curves.values())
    reference = groups[0]["curve"] if job.reference else None
    steps = wanted
    window = max(1, min(_WINDOW, steps // 4))
    kept = np.unique(np.linspace(window - 1, steps - 1, _POINTS).round().astype(int))
    return {
        "window": window,
        "steps": (kept + 1).tolist(),
        "reference": groups[0]["labels"][0] if job.reference else None,
        "left_out": {label: steps for label, steps in made.items() if steps != wanted},
        "groups": [_group(group, reference, window, kept) for group in groups],
    }


def _group(
    group: dict[str, Any], reference: np.ndarray | None, window: int, kept: np.ndarray
) -> dict[str, Any]:
    curve = group["curve"]
    # The mean of |difference|, not the difference of means: curves that cross must not look equal there.
    apart = None if reference is None else _trailing_mean(np.abs(curve - reference), window)
    difference = [] if apart is None else _plain(apart[kept])
    return {
        "labels": group["labels"],
        "loss": _plain(_trailing_mean(curve, window)[kept]),
        "difference": difference if any(difference) else None,
    }


def _trailing_mean(values: np.ndarray, window: int) -> np.ndarray:
    """At each step the mean over it and those before it, `window` in all; NaN until there are that many."""
    means = np.full(len(values), np.nan)
    means[window - 1 :] = np.lib.stride_tricks.sliding_window_view(values, window).mean(axis=1)
    return means


def _plain(values: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def draw(data: dict[str, Any]) -> "Figure":
    groups = data["groups"]
    apart = [group for group in groups if group["difference"]]
    lines = len(apart if data["reference"] else groups)  # each has its name beside one of the two axes
    figure = style.new_figure(5.6 + 0.3 * max(0, lines - 9))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=_heights(data, lines))
    looks = {id(group): _look(at) for at, group in enumerate(groups)}
    for group in reversed(groups):  # the reference on top
        upper.plot(data["steps"], _floats(group["loss"]), **looks[id(group)])
    upper.set_title("Training loss")
    upper.set_yscale("log")
    _plain_ticks(upper)
    upper.set_ylabel("loss (log scale)")
    style.subtitle(upper, _legend(data, apart))
    if not data["reference"]:
        _label_ends(upper, data["steps"][-1], [_last(group["loss"]) for group in groups], groups, looks)
    _differences(lower, data, apart, looks)
    lower.set_xlabel("optimizer step")
    lower.set_xlim(0, data["steps"][-1])
    return figure


def _plain_ticks(axes: Any) -> None:
    """0.1, 0.2, 0.5, 1, ...: a loss covers two decades or less."""
    low, high = axes.get_ylim()
    ticks = [step * 10.0**power for power in range(-6, 4) for step in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if len(ticks) < 12:
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_yticks([], minor=True)


def _legend(data: dict[str, Any], apart: list[dict[str, Any]]) -> list[tuple[str, str]]:
    smoothing = f"mean over {data['window']} steps" if data["window"] > 1 else "each step"
    parts = [(smoothing, style.GREY)]
    if data["reference"]:
        parts.insert(0, (f"— {_names(data['groups'][0]['labels'])}", style.BLACK))
    return [*parts, ("other colours as below" if apart else "", style.GREY)]


def _differences(axes: Any, data: dict[str, Any], apart: list[dict[str, Any]], looks: dict[int, Any]) -> None:
    axes.set_title(f"Difference from {data['reference'] or 'single'}", fontsize=11)
    axes.set_ylabel("|difference of loss|\n(log scale)")
    if not apart:
        missing = (
            "no curve differs in any bit"
            if data["reference"]
            else "unavailable: single did not run to its end"
        )
        axes.text(0.5, 0.5, missing, transform=axes.transAxes, ha="center", color=style.GREY)
        axes.set_yticks([])
        return
    axes.set_yscale("log")
    for group in apart:
        values = np.array(_floats(group["difference"]))
        axes.plot(data["steps"], np.where(values > 0, values, np.nan), **looks[id(group)])
    axes.margins(y=0.12)
    ends = [_last(group["difference"]) for group in apart]
    _label_ends(axes, data["steps"][-1], ends, apart, looks)
    axes.grid(which="minor", visible=False)


def _label_ends(
    axes: Any, x: float, ends: list[float], groups: list[dict[str, Any]], looks: dict[int, Any]
) -> None:
    """The names right of the ends of the lines, moved apart where they would lie over each other."""
    low, high = np.log(axes.get_ylim())
    at = (np.log(ends) - low) / (high - low)
    gap = min(0.088, 1.05 / max(len(groups), 1))
    for group, end, place in zip(groups, ends, _spread(at, gap), strict=True):
        look = looks[id(group)]
        thin = {"arrowstyle": "-", "color": look["color"], "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0}
        axes.annotate(
            "", (x, end), (1.035, place), textcoords="axes fraction", arrowprops=thin, annotation_clip=False
        )
        axes.plot([1.035, 1.085], [place] * 2, transform=axes.transAxes, clip_on=False, **look)
        axes.text(
            1.095,
            place,
            _names(group["labels"]),
            transform=axes.transAxes,
            va="center",
            fontsize=9,
            color=look["color"],
        )


def _spread(places: np.ndarray, gap: float) -> np.ndarray:
    """`places` moved up, and down again where they left the top, so that they lie `gap` apart."""
    order = np.argsort(places, kind="stable")
    spread = places.copy()
    for below, this in pairwise(order):
        spread[this] = max(spread[this], spread[below] + gap)
    spread[order[-1]] = min(spread[order[-1]], 1.0)
    for above, this in pairwise(order[::-1]):
        spread[this] = min(spread[this], spread[above] - gap)
    return spread


def _names(labels: list[str]) -> str:
    """One line, whatever the number of labels: the caption has them all."""
    return " = ".join(labels) if len(labels) < 3 else f"{labels[0]} and {len(labels) - 1} more"


def caption(data: dict[str, Any]) -> str:
    """What the figure has no room for, as Markdown: the names of equal curves, and the runs it leaves out."""
    equal = [
        listing([code(label) for label in group["labels"]])
        for group in data["groups"]
        if len(group["labels"]) > 1
    ]
    parts = [f"Equal in every bit, so one line each: {'; '.join(equal)}."] if equal else []
    left_out = [f"{code(label)} ({steps:,} steps)" for label, steps in data["left_out"].items()]
    if left_out:
        other = "`single`" if data["reference"] else "most"
        parts.append(f"Not in the figure, as they made other steps than {other}: {listing(left_out)}.")
    return " ".join(parts)


def _heights(data: dict[str, Any], lines: int) -> tuple[float, float]:
    """The shares of the two axes: names need room beside the one that has them."""
    more = 0.08 * max(0, lines - 9)
    return (1, 1.15 + more) if data["reference"] else (1 + more, 0.7)


def _look(at: int) -> dict[str, Any]:
    """The first is the reference; then the colours in turn, dashed once they are used up."""
    if at == 0:
        return {"color": style.BLACK, "linewidth": 1.5, "zorder": 3}
    turn, color = divmod(at - 1, len(style.CYCLE))
    return {"color": style.CYCLE[color], "linestyle": _DASHES[turn % len(_DASHES)], "linewidth": 1.6}


def _floats(values: list[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]


def _last(values: list[float | None]) -> float:
    """The last value that a log axis can show."""
    return next(value for value in reversed(values) if value)
