"""How far the step times of each variant spread: their distribution, with p50, p90 and p99."""

from typing import TYPE_CHECKING, Any

import numpy as np

from bench import derive
from bench.plots import style
from bench.plots.throughput import note, shortened
from bench.report.cells import milliseconds
from bench.report.collect import Entry, Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALT = "Distribution of the step times of each variant in milliseconds, with p50, p90 and p99 marked"
_QUANTILES = 200  # enough for the shape, and as many for a run of a million steps
_MARKS = (
    ("p50", "o", "●", style.BLACK),
    ("p90", "D", "◆", style.BLUE),
    ("p99", "^", "▲", style.VERMILLION),
)


def data(job: Job) -> dict[str, Any] | None:
    """In the order of the table."""
    return {"rows": [_row(entry) for entry in job.entries]} if job.timed else None


def _row(entry: Entry) -> dict[str, Any]:
    steady = [derive.step_times_ms(raw)[derive.warmup_steps(raw) :] for raw in entry.raws]
    shape = np.quantile(np.concatenate(steady), np.linspace(0, 1, _QUANTILES)).tolist() if steady else []
    return {
        "label": entry.label,
        "note": note(entry),
        "ranks": entry.row.world_size,
        "step_ms": entry.row.step_ms,
        "quantiles_ms": shape,
        "failure": entry.failure,
    }


def draw(data: dict[str, Any]) -> "Figure":
    rows = data["rows"]
    figure = style.new_figure(style.rows_height(len(rows)))
    axes = figure.subplots()
    axes.set_title("Step time")
    style.name_rows(axes, [row["label"] for row in rows], [row["note"] for row in rows])
    axes.set_xscale("log")
    for at, row in enumerate(rows):
        if row["quantiles_ms"]:
            _distribution(axes, at, row)
        else:
            style.say_missing(axes, at, shortened(row["failure"]))
    _ticks(axes, [time for row in rows for time in row["quantiles_ms"]])
    axes.set_xlabel("time of a steady step on its slowest rank, ms (log scale)")
    heads = [(f"{sign} {name}", color) for name, _, sign, color in _MARKS]
    style.columns(
        axes, heads, [row["step_ms"] and [milliseconds(ms) for ms in row["step_ms"].values()] for row in rows]
    )
    sizes = {row["ranks"] for row in rows if row["quantiles_ms"]}
    style.subtitle(
        axes,
        [
            *style.rank_key(sizes),
            ("shape: all steady steps; marks: median of the repeats", style.GREY),
        ],
    )
    return figure


def _distribution(axes: Any, at: int, row: dict[str, Any]) -> None:
    color = style.rank_color(row["ranks"])
    times, height = _outline(np.array(row["quantiles_ms"]))
    axes.fill_between(times, at - height, at + height, color=color, alpha=0.75, linewidth=0)
    axes.plot(times[[0, -1]], [at, at], color=color, linewidth=1)
    edge = {"markeredgecolor": "white", "markeredgewidth": 0.7, "markersize": 5.5}
    for name, marker, _, mark_color in _MARKS:
        axes.plot(row["step_ms"][name], at, marker, color=mark_color, **edge)


def _outline(quantiles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(times, half heights) of a violin: the density over log time, smoothed, its top at 0.36 of a row."""
    logs = np.log(quantiles)
    width = max(
        0.012, 1.06 * min(logs.std(), np.subtract(*np.percentile(logs, (75, 25))) / 1.34) * len(logs) ** -0.2
    )
    grid = (
        np.linspace(logs[0], logs[-1], 120) if logs[-1] > logs[0] else logs[:1] + np.array([-width, 0, width])
    )
    density = np.exp(-0.5 * ((grid[:, None] - logs) / width) ** 2).sum(axis=1)
    return np.exp(grid), 0.36 * density / density.max()


def _ticks(axes: Any, times: list[float]) -> None:
    """Round numbers within the range, as a log axis of less than a decade has hardly a tick of its own."""
    low, high = min(times) / 1.08, max(times) * 1.08
    axes.set_xlim(low, high)
    steps = (1, 2, 5) if high / low > 12 else (1, 1.5, 2, 3, 4, 5, 6, 8)
    all_ticks = [step * 10.0**power for power in range(-4, 8) for step in steps]
    ticks = [tick for tick in all_ticks if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.set_xticks([], minor=True)
