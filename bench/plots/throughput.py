"""images/s of each variant: the median as a bar, the range of the repeats as a line, each repeat as a dot."""

from statistics import median
from typing import TYPE_CHECKING, Any

from bench.plots import style
from bench.report.collect import Entry, Job
from bench.report.compare import differs, ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALT = "Throughput of each variant in images per second, with the range of its repeats"


def data(job: Job) -> dict[str, Any] | None:
    """The fastest first, and last those without a number."""
    if not job.timed:
        return None
    ranked = sorted(job.entries, key=lambda entry: -median(entry.rates) if entry.rates else 0.0)
    return {"rows": [_row(entry, job.reference) for entry in ranked]}


def _row(entry: Entry, reference: Entry | None) -> dict[str, Any]:
    against = ratio(entry, reference) if reference and entry is not reference else None
    return {
        "label": entry.label,
        "note": note(entry),
        "ranks": entry.row.world_size,
        "images_per_s": entry.rates,
        "reference": entry is reference,
        "speedup": against.value if against else None,
        "told_apart": bool(against and differs(entry.rates, reference.rates) is not False),
        "failure": entry.failure,
    }


def note(entry: Entry) -> str | None:
    """The remark under the name of a variant."""
    if not entry.raws:
        return None
    if entry.pass_through:
        return "pass-through"
    if entry.emulated:
        return "emulated"
    precision = entry.row.precision or ""
    return None if precision.startswith("float32") else precision


def draw(data: dict[str, Any]) -> "Figure":
    rows = data["rows"]
    figure = style.new_figure(style.rows_height(len(rows)))
    axes = figure.subplots()
    axes.set_title("Throughput")
    style.name_rows(axes, [row["label"] for row in rows], [row["note"] for row in rows])
    for at, row in enumerate(rows):
        if row["images_per_s"]:
            _bar(axes, at, row)
        else:
            style.say_missing(axes, at, shortened(row["failure"]))
    most = max(max(row["images_per_s"], default=0) for row in rows)
    axes.set_xlim(0, most * 1.5)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("images/s over all ranks")
    style.subtitle(axes, _key(rows))
    return figure


def shortened(text: str, longest: int = 88) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _key(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    timed = [row for row in rows if row["images_per_s"]]
    counts = {len(row["images_per_s"]) for row in timed}
    repeats, up_to = max(counts), "up to " if len(counts) > 1 else ""
    how = (
        f"median of {up_to}{repeats} repeats, line from the least to the most"
        if repeats > 1
        else "one repeat"
    )
    return [*style.rank_key({row["ranks"] for row in timed}), (how, style.GREY)]


def _bar(axes: Any, at: int, row: dict[str, Any]) -> None:
    rates, middle = row["images_per_s"], median(row["images_per_s"])
    axes.barh(at, middle, height=0.62, color=style.rank_color(row["ranks"]))
    if len(rates) > 1:
        axes.plot([min(rates), max(rates)], [at, at], color=style.BLACK, linewidth=1.4)
        axes.plot(rates, [at] * len(rates), "o", color=style.BLACK, markersize=3.4)
    value = axes.annotate(
        f"{middle:,.0f}",
        (max(rates), at),
        xytext=(7, 0),
        textcoords="offset points",
        va="center",
        fontweight="bold",
    )
    against = "reference" if row["reference"] else f"{row['speedup']:.2f}x single" if row["speedup"] else ""
    against += "" if row["told_apart"] or not row["speedup"] else ", within the spread"
    partly = f"{row['failure'].partition(':')[0]}" if row["failure"] else ""
    axes.annotate(
        "  ".join(filter(None, (against, partly))),
        (1, 0.5),
        xycoords=value,
        xytext=(7, 0),
        textcoords="offset points",
        va="center",
        color=style.GREY,
        fontsize=9,
    )
