"""Rows as a table for people and as JSON for programs."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, TextIO

from bench.derive import Row, images_per_s

_JSON_KEYS = (
    "variant",
    "status",
    "reason",
    "world_size",
    "device",
    "backend",
    "precision",
    "global_batch_size",
    "images_per_s",
    "step_ms",
    "warmup_steps",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "peak_rss_bytes",
    "final_loss",
    "test_accuracy",
    "parity",
    "record",
)
_PARITY_KEYS = ("reference", "class", "max_abs_diff", "tolerance")
_STATUS_STYLES = {"ok": "green", "skipped": "yellow", "interrupted": "yellow"}
_PIPE_WIDTH = 120


def json_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows with exactly the keys that are promised; what is not known is None."""
    found = []
    for row in rows:
        plain = {key: getattr(row, key) for key in _JSON_KEYS}
        if row.parity:
            plain["parity"] = {key: row.parity[key] for key in _PARITY_KEYS}
        found.append(plain)
    return found


def print_table(rows: Sequence[Row], stream: TextIO) -> None:
    """Two blocks, so that either fits into 100 columns, and below them what the cells cannot hold."""
    from rich.console import Console

    console = Console(file=stream, width=None if stream.isatty() else _PIPE_WIDTH, highlight=False)
    console.print(_grid(_SPEED, rows))
    console.print(_grid(_TRAINING, rows))
    for line in _remarks(rows):  # whole lines, so that they can be searched and copied
        console.print(line, markup=False, soft_wrap=True)


def _grid(columns: Sequence[tuple[str, str, Any]], rows: Sequence[Row]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for title, justify, _ in columns:
        table.add_column(title, justify=justify, overflow="fold", no_wrap=title in ("variant", "status"))
    for row in rows:
        cells = [Text(cell(row)) for _, _, cell in columns]
        cells[1].stylize(_STATUS_STYLES.get(row.status, "red") if columns[1][0] == "status" else "")
        table.add_row(*cells)
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _spread(row: Row) -> str:
    """How far the repeats lie around the median, in percent; nothing for a single run."""
    rates = [images_per_s(record.raw) for record in row.records if record.ok]
    if len(rates) < 2:
        return ""
    return f" ±{(max(rates) - min(rates)) / 2 / row.images_per_s:.0%}"


def _step(row: Row, percentile: str) -> str:
    return _number(row.step_ms and row.step_ms[percentile], ".2f")


def _memory(row: Row) -> str:
    """The device's peak where there is one, else the host's; the most that any one rank used."""
    if row.peak_allocated_bytes is not None:
        return f"{row.peak_allocated_bytes / 2**20:,.0f} MiB"
    return "-" if row.peak_rss_bytes is None else f"{row.peak_rss_bytes / 2**20:,.0f} MiB RSS"


def _parity(row: Row) -> str:
    if row.parity is None:
        return "reference" if row.variant == "single" and row.status == "ok" else "-"
    difference = row.parity["max_abs_diff"]
    return row.parity["class"] + (f" ({difference:.1e})" if difference else "")


_SPEED = (
    ("variant", "left", lambda row: row.variant),
    ("status", "left", lambda row: row.status),
    ("ranks", "right", lambda row: _number(row.world_size, "d")),
    ("device", "left", lambda row: row.device or "-"),
    ("precision", "left", lambda row: row.precision or "-"),
    ("images/s", "right", lambda row: _number(row.images_per_s, ",.0f") + _spread(row)),
    ("step p50", "right", lambda row: _step(row, "p50")),
    ("p90", "right", lambda row: _step(row, "p90")),
    ("p99 ms", "right", lambda row: _step(row, "p99")),
    ("peak memory", "right", _memory),
)
_TRAINING = (
    ("variant", "left", lambda row: row.variant),
    ("final loss", "right", lambda row: _number(row.final_loss, ".4f")),
    ("accuracy", "right", lambda row: _number(row.test_accuracy, ".2%")),
    ("loss parity vs single", "left", _parity),
    ("record", "left", lambda row: PurePath(row.record).name if row.record else "-"),
)


def _remarks(rows: Sequence[Row]) -> list[str]:
    """Why a row is not plain, and what was left out of the times."""
    remarks = [f"{row.variant}: {row.reason}" for row in rows if row.reason]
    for row in rows:
        if row.parity and row.parity["reason"]:
            remarks.append(f"{row.variant}: parity: {row.parity['reason']}")
    cuts = {row.warmup_steps for row in rows if row.warmup_steps is not None}
    if cuts:
        cut = " or ".join(str(steps) for steps in sorted(cuts))
        remarks.append(
            f"times leave out the first {cut} steps; images/s is of all ranks, memory of the largest one"
        )
    folders = {str(PurePath(row.record).parent) for row in rows if row.record}
    remarks += [f"records and logs are in {folder}" for folder in sorted(folders)]
    return remarks
