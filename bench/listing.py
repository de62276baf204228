"""`bench list`: the variants there are, without importing any."""

import json
import shutil
import textwrap
from typing import Any

from bench.diff import changed_lines
from bench.registry import Variant, variants

_STARTED = {"one": "python", "launcher": "torchrun", "itself": "python"}
_HEADER = ("variant", "parent", "lines", "started by", "technique")


def entries() -> list[dict[str, Any]]:
    """The variants as plain values. `lines`: by how many of code each differs from its parent."""
    known = variants()
    return [_entry(variant, known) for variant in known.values()]


def _entry(variant: Variant, known: dict[str, Variant]) -> dict[str, Any]:
    parent = known.get(variant.parent)
    return {
        "variant": variant.name,
        "kind": variant.kind,
        "parent": variant.parent,
        "lines": changed_lines(variant.path, parent.path) if parent else None,
        "started_by": _STARTED[variant.ranks],
        "technique": variant.summary,
        "command": variant.command,
    }


def listing(as_json: bool) -> str:
    """The text of `bench list`."""
    found = entries()
    if as_json:
        return json.dumps(found, indent=2)
    rows = [_cells(entry) for entry in found]
    widths = [max(len(row[column]) for row in [_HEADER, *rows]) for column in range(4)]
    room = max(30, shutil.get_terminal_size((120, 0)).columns - sum(widths) - 2 * len(widths))
    return "\n".join(line for row in [_HEADER, *rows] for line in _lines(row, widths, room))


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    lines = "-" if entry["lines"] is None else str(entry["lines"])
    return entry["variant"], entry["parent"] or "-", lines, entry["started_by"], entry["technique"]


def _lines(row: tuple[str, ...], widths: list[int], room: int) -> list[str]:
    """A row of the table; the technique may take several lines."""
    name, parent, count, started = row[:4]
    left = f"{name:<{widths[0]}}  {parent:<{widths[1]}}  {count:>{widths[2]}}  {started:<{widths[3]}}  "
    technique = textwrap.wrap(row[4], room) or [""]
    return [left + technique[0], *(" " * len(left) + line for line in technique[1:])]
