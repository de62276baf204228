"""What each technique costs in lines of code and its speed-up: every variant against its parent."""

from bench import diff
from bench.markdown import code, details, escape, fence, html, table
from bench.registry import Variant
from bench.report import cells
from bench.report.collect import Entry, Machine
from bench.report.compare import incomparable, ratio, verdict
from bench.report.machine import title


def section(known: dict[str, Variant], machines: list[Machine]) -> str:
    children = [v for v in known.values() if v.parent in known and v.kind == "method"]
    lines = {
        variant.name: diff.changed_lines(variant.path, known[variant.parent].path) for variant in children
    }
    header = [
        "Variant",
        "Parent",
        "Lines changed",
        *(f"Speed-up on {escape(title(machine))}" for machine in machines),
    ]
    rows = [
        [code(v.name), code(v.parent), str(lines[v.name]), *(_speed_up(v, machine) for machine in machines)]
        for v in children
    ]
    parts = [
        "## What each method costs in lines",
        "Every variant is a script of its own that differs from its parent by one technique. Comments, "
        "docstrings and blank lines are not counted, a changed line counts once; the gain is in images/s "
        "over the parent.",
        table(header, rows, "llr" + "l" * len(machines)),
        *(_folded(variant, known[variant.parent], lines[variant.name]) for variant in children),
    ]
    return "\n\n".join(parts)


def _speed_up(variant: Variant, machine: Machine) -> str:
    child, parent = _pair(variant, machine)
    if child is None or parent is None:
        return "not run here" if child is None else f"unavailable: {code(variant.parent)} has no numbers here"
    found = ratio(child, parent)
    if found is None:
        return f"unavailable: {escape(incomparable(child, parent))}"
    mark = (
        f"; {'emulated' if child.emulated else 'a pass-through'}"
        if child.emulated or child.pass_through
        else ""
    )
    return f"{cells.factor(found)}: {verdict(child, parent)}{mark}"


def _pair(variant: Variant, machine: Machine) -> tuple[Entry | None, Entry | None]:
    """Child and parent in the main job: the child with the most ranks, the parent with as many if it can."""
    mine = [entry for entry in machine.main.timed if entry.variant == variant.name]
    theirs = [entry for entry in machine.main.timed if entry.variant == variant.parent]
    child = max(mine, key=lambda entry: entry.row.world_size, default=None)
    alike = [entry for entry in theirs if child and entry.row.world_size == child.row.world_size]
    return child, max(alike or theirs, key=lambda entry: entry.row.world_size, default=None)


def _folded(variant: Variant, parent: Variant, lines: int) -> str:
    head = f"<b>{html(variant.name)}</b> against {html(parent.name)}: {cells.count(lines, 'line')} changed"
    command = f"\n\nBy hand: {code(variant.command)}" if variant.command else ""
    text = "\n".join(diff.unified(parent, variant))
    return details(head, f"{escape(variant.summary)}{command}\n\n{fence(text, 'diff')}")
