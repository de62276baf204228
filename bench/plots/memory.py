"""Memory of each variant: on the host, and on GPUs where there are some."""

from typing import TYPE_CHECKING, Any

from bench import derive
from bench.plots import style
from bench.plots.throughput import note, shortened
from bench.report.collect import Entry, Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALT = "Memory of each variant in MiB: all ranks together and each, on the host and on GPUs where there are"
_MIB = 2**20
_RESERVED = "#A8A8A8"


def data(job: Job) -> dict[str, Any] | None:
    """In the order of the table; None where no row knows its memory."""
    rows = [_row(entry) for entry in job.entries]
    known = any(row[key] for row in rows for key in ("pss_mib", "peak_rss_mib", "reserved_mib"))
    return {"rows": rows} if known else None


def _row(entry: Entry) -> dict[str, Any]:
    return {
        "label": entry.label,
        "note": note(entry),
        "ranks": entry.row.world_size,
        "pss_mib": derive.pss_mib(entry.raws),
        "peak_rss_mib": [each / _MIB for each in derive.per_rank(entry.raws, "peak_rss_bytes")],
        "allocated_mib": _mib(entry.row.peak_allocated_bytes),
        "reserved_mib": _mib(entry.row.peak_reserved_bytes),
        "failure": entry.failure,
    }


def _mib(value: int | None) -> float | None:
    return None if value is None else value / _MIB


def draw(data: dict[str, Any]) -> "Figure":
    rows = data["rows"]
    on_gpu = any(row["reserved_mib"] for row in rows)
    panels = 2 if on_gpu else 1
    figure = style.new_figure(panels * style.rows_height(len(rows)))
    host, *gpu = figure.subplots(panels, 1, squeeze=False)[:, 0]
    _host(host, rows)
    if gpu:
        _gpu(gpu[0], rows)
    return figure


def _host(axes: Any, rows: list[dict[str, Any]]) -> None:
    axes.set_title("Host memory")
    style.name_rows(axes, [row["label"] for row in rows], [row["note"] for row in rows])
    for at, row in enumerate(rows):
        if row["pss_mib"] is None and not row["peak_rss_mib"]:
            style.say_missing(axes, at, shortened(row["failure"] or "unavailable: this system does not tell"))
            continue
        if row["pss_mib"] is not None:
            axes.barh(at, row["pss_mib"], height=0.62, color=style.rank_color(row["ranks"]))
        ranks = row["peak_rss_mib"]
        axes.plot(ranks, [at] * len(ranks), "D", color=style.BLACK, markersize=4.5, alpha=0.8)
    _scale(axes, [max([row["pss_mib"] or 0, *row["peak_rss_mib"]]) for row in rows])
    cells = [[_whole(row["pss_mib"]), _whole(max(row["peak_rss_mib"], default=None))] for row in rows]
    style.columns(axes, [("PSS", style.GREY), ("◆ RSS", style.BLACK)], cells)
    sizes = {row["ranks"] for row in rows if row["pss_mib"]}
    key = ("bar: PSS of all ranks, at the end   ◆ peak RSS of each rank", style.GREY)
    style.subtitle(axes, [*style.rank_key(sizes), key])


def _gpu(axes: Any, rows: list[dict[str, Any]]) -> None:
    axes.set_title("GPU memory")
    style.name_rows(axes, [row["label"] for row in rows], [row["note"] for row in rows])
    for at, row in enumerate(rows):
        if row["reserved_mib"] is None:
            style.say_missing(axes, at, shortened(row["failure"] or "unavailable: ran on the CPU"))
            continue
        axes.barh(at, row["reserved_mib"], height=0.62, color=_RESERVED)
        axes.barh(at, row["allocated_mib"], height=0.62, color=style.GREEN)
    _scale(axes, [row["reserved_mib"] or 0 for row in rows])
    cells = [[_whole(row["allocated_mib"]), _whole(row["reserved_mib"])] for row in rows]
    style.columns(axes, [("■ alloc.", style.GREEN), ("■ res.", _RESERVED)], cells)
    key = [("■ allocated", style.GREEN), ("■ reserved", _RESERVED), ("peak of the fullest rank", style.GREY)]
    style.subtitle(axes, key)


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _scale(axes: Any, ends: list[float]) -> None:
    axes.set_xlim(0, max([*ends, 1]) * 1.04)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("MiB")
