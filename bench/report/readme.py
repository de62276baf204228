"""The parts of README.md that hold numbers, made like the report: a picture and a table of the variants."""

import re
from pathlib import Path

import numpy as np

from bench import diff
from bench.derive import loss_curve
from bench.markdown import code, escape, image, table
from bench.registry import Variant
from bench.report import cells
from bench.report.collect import Entry, Machine
from bench.report.compare import ratio
from bench.report.machine import title

_PART = r"(<!-- {name}: begin[^>]*-->\n).*?(<!-- {name}: end -->)"


def filled(text: str, known: dict[str, Variant], machines: list[Machine], base: str) -> str:
    """`text` of a README with its marked parts made anew; whatever is not marked stays as it is.

    `base`: the results folder as seen from the README.
    """
    parts = {
        "picture": _picture(machines, base),
        "variants": _table(known, machines),
        "apex": _apex(_first(machines)),
    }
    for name, content in parts.items():
        text = re.sub(
            _PART.format(name=name), lambda part, c=content: f"{part[1]}{c}{part[2]}", text, flags=re.DOTALL
        )
    return text


def has_parts(text: str) -> bool:
    """Whether there is anything in a README for this module to make."""
    return any(
        re.search(_PART.format(name=name), text, re.DOTALL) for name in ("picture", "variants", "apex")
    )


def _first(machines: list[Machine]) -> Machine | None:
    """The machine that the README shows: that with the most variants measured."""
    return max(machines, key=lambda machine: len(machine.main.timed), default=None)


def _picture(machines: list[Machine], base: str) -> str:
    machine = _first(machines)
    if machine is None:
        return "*(no results yet)*\n"
    figure = Path(base, machine.folder.name, "figures", "throughput.png").as_posix()
    return f"{image(f'Throughput of each variant on {title(machine)}', figure)}\n"


def _apex(machine: Machine | None) -> str:
    """How far apex amp and torch.amp trained apart, in their newest repeats."""
    entries = [_entry(machine, name) for name in ("apex_amp", "single_amp")]
    if not all(entry and entry.raws for entry in entries):
        return "*(not measured side by side yet)*\n"
    apex, native = (entry.last for entry in entries)
    if apex["steps"] != native["steps"]:
        return f"*(not comparable yet: they ran for {apex['steps']} and {native['steps']} steps)*\n"
    apart = np.abs(loss_curve(apex) - loss_curve(native)).max()
    accuracies = [f"{raw['epochs'][-1]['test_accuracy']:.2%}" for raw in (apex, native)]
    ran = (apex.get("apex") or {}).get("name") or "apex"
    level, steps = apex["config"].get("opt_level"), apex["steps"]
    which = f"{ran} at {level}" if level else ran
    dtypes = f"{apex['precision']['compute']} and {native['precision']['compute']}"
    return (
        f"Side by side on {escape(title(machine))} ({escape(which)} and torch.amp, {dtypes}): over "
        f"{steps} steps the two losses are never further apart than {apart:.2g}, and test accuracy is "
        f"{accuracies[0]} and {accuracies[1]}.\n"
    )


def _table(known: dict[str, Variant], machines: list[Machine]) -> str:
    machine = _first(machines)
    rows = [_row(variant, known, machine) for variant in known.values() if variant.kind == "method"]
    header = ["Variant", "Parent", "Lines", "Technique", "images/s", "vs single", "Loss parity with single"]
    where = f"Measured on {escape(title(machine))}; `Lines` differ from the parent.\n\n" if machine else ""
    return f"{where}{table(header, rows, 'llrlrrl')}\n"


def _row(variant: Variant, known: dict[str, Variant], machine: Machine | None) -> list[str]:
    parent = known.get(variant.parent)
    lines = str(diff.changed_lines(variant.path, parent.path)) if parent else cells.NOTHING
    head = [
        f"[{code(variant.name)}](variants/{variant.path.name})",
        code(parent.name) if parent else cells.NOTHING,
        lines,
        escape(variant.summary),
    ]
    entry = _entry(machine, variant.name)
    if entry is None:
        return [*head, cells.NOTHING, cells.NOTHING, "not run"]
    if not entry.raws:
        return [*head, cells.NOTHING, cells.NOTHING, cells.status(entry)]
    reference = machine.main.reference
    mark = " (emulated)" if entry.emulated else " (pass-through)" if entry.pass_through else ""
    kind = "reference" if entry is reference else (entry.row.parity or {}).get("class") or "not compared"
    if variant.differs and entry is not reference:
        kind += f"; on purpose: {variant.differs}"
    rate = f"{cells.whole(entry.row.images_per_s)}{mark}"
    return [*head, rate, _against(entry, reference), escape(kind)]


def _against(entry: Entry, reference: Entry | None) -> str:
    if entry is reference:
        return "1"
    found = ratio(entry, reference) if reference else None
    return str(found) if found else f"unavailable: {cells.why_no_ratio(entry, reference)}"


def _entry(machine: Machine | None, name: str) -> Entry | None:
    """The row of the variant with the most ranks."""
    entries = [entry for entry in machine.main.entries if entry.variant == name] if machine else []
    return max(entries, key=lambda entry: entry.row.world_size or 0, default=None)
