"""Puts REPORT.md and its figures together, and finds out whether those that are there are still true."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import registry
from bench.markdown import bullets, escape, image, link
from bench.plots import FIGURES, STUDY_FIGURES, files, loss, style
from bench.report import cost, machine, method, readme
from bench.report.collect import Job, Machine, machines

_MADE_BY = "<!-- Made by `python -m bench report`"
HEAD = f"{_MADE_BY} from the records in results/: never edited by hand. -->"
_INTRO = """# One MNIST job, many ways: what was measured

One training job, the same in every row, run by scripts that differ from each other by one technique. The
numbers and plots below are made from the raw records of the runs; the sentences are chosen by them."""
_NOTHING_YET = """There are no results yet. This measures every method three times and makes the report:

    python -m bench run --variant all --repeats 3
    python -m bench report"""


_MODULES = {**FIGURES, **STUDY_FIGURES}


class ReportError(Exception):
    """What the user must know, in one line."""


@dataclass(frozen=True)
class Picture:
    """A figure that the report shows: where, of which data."""

    machine: Machine
    name: str
    data: dict[str, Any]

    @property
    def path(self) -> Path:
        return self.machine.folder / "figures" / f"{self.name}.png"

    @property
    def digest(self) -> str:
        return files.digest([self.name, self.data])

    def draw(self) -> None:
        """Draw it unless the files there show these data, drawn by this code."""
        if files.is_drawn_from(self.path, self.digest, code=files.code_digest()):
            return
        style.load()
        with style.style():
            files.save(_MODULES[self.name].draw(self.data), self.path, self.digest)


class Report:
    """What the report says of the records in `results_dir`, as `output` would show it."""

    def __init__(self, results_dir: Path, output: Path) -> None:
        self.results_dir, self.output = results_dir, output
        self.readme = output.with_name("README.md")
        self.known = registry.variants()
        self.probes = {variant.name for variant in self.known.values() if variant.kind == "probe"}
        self.machines, self.problems = machines(results_dir, self.known)
        self.pictures = [
            Picture(each, name, data)
            for each in self.machines
            for name in _MODULES
            if (data := self._data(name, each)) is not None
        ]

    def write(self) -> list[str]:
        """Draw the figures and write the report; a line for each figure that could not be drawn."""
        if self.output.exists() and not self._read().startswith(_MADE_BY):
            raise ReportError(f"{self.output} was not made by this command and is left alone: use --output")
        missing = {}
        for picture in self.pictures:
            try:
                picture.draw()
            except style.NoMatplotlib as error:
                if not files.is_drawn_from(picture.path, picture.digest):
                    missing[picture.path] = str(error)
        _replace(self.output, self.text(missing))
        old, new = self._readme()
        if old != new:
            _replace(self.readme, new)
        return [f"{path}: not drawn: {reason}" for path, reason in missing.items()]

    def stale(self) -> list[str]:
        """A line for each file that is not what `write` would make; nothing is written."""
        lines = []
        if not self.output.exists():
            lines.append(f"{self.output} is missing")
        elif (there := self._read()) != (wanted := self.text({})):
            lines.append(f"{self.output} is stale: {_first_difference(there, wanted)}")
        old, new = self._readme()
        if old != new:
            lines.append(f"{self.readme} is stale: its marked parts")
        for picture in self.pictures:
            if not files.is_drawn_from(picture.path, picture.digest):
                what = "was drawn from other data" if picture.path.exists() else "is missing"
                lines.append(f"{picture.path} {what}")
        return lines

    def text(self, missing: dict[Path, str]) -> str:
        """The Markdown; `missing` are the figures that cannot be shown, with the reason."""
        parts = [HEAD, _INTRO, *self._left_out()]
        if self.machines:
            parts += [machine.section(each, self._context(each, missing)) for each in self.machines]
        else:
            parts.append(_NOTHING_YET)
        parts.append(cost.section(self.known, self.machines))
        if self.machines:
            parents = {variant.name: variant.parent for variant in self.known.values()}
            parts += [
                method.section(self.machines, self._relative(self.results_dir), parents, self.probes),
                method.not_run_section(self.machines),
                method.machines_section(self.machines),
            ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _data(self, name: str, each: Machine) -> dict[str, Any] | None:
        """What a figure shows of a machine; None where there is nothing to show."""
        if name in STUDY_FIGURES:
            return STUDY_FIGURES[name].data(each)
        return FIGURES[name].data(self._shown_in(name, each))

    def _shown_in(self, name: str, each: Machine) -> Job:
        """What a figure shows: probes are no methods to choose from, only their training is of interest."""
        return each.main if name == "loss" else each.main.without(self.probes)

    def _context(self, each: Machine, missing: dict[Path, str]) -> machine.Context:
        pictures = dict.fromkeys(_MODULES, "")
        for picture in self.pictures:
            if picture.machine is each:
                pictures[picture.name] = self._shown(picture, missing.get(picture.path))
        rows = {entry.variant for entry in each.main.entries}
        methods = {variant.name for variant in self.known.values() if variant.kind == "method"}
        own = rows - set(self.known)
        parents = {variant.name: variant.parent for variant in self.known.values()}
        differs = {variant.name: variant.differs for variant in self.known.values()}
        return machine.Context(parents, differs, methods | own, self.probes, pictures)

    def _shown(self, picture: Picture, reason: str | None) -> str:
        """The picture, a click on which opens the sharper SVG; or why there is none."""
        alt = f"{_MODULES[picture.name].ALT}, on {machine.title(picture.machine)}"
        if reason:
            return f"*{escape(alt)}: no plot, {escape(reason)}*"
        png = self._relative(picture.path)
        shown = link(image(alt, png), png.removesuffix("png") + "svg")
        caption = loss.caption(picture.data) if picture.name == "loss" else ""
        return f"{shown}\n\n{caption}" if caption else shown

    def _left_out(self) -> list[str]:
        if not self.problems:
            return []
        return ["Left out, as they are no whole records:\n\n" + bullets(map(escape, self.problems))]

    def _readme(self) -> tuple[str, str]:
        """README.md beside the report as it is and as it should be: the same where no part of it is ours."""
        try:
            text = self.readme.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return "", ""
        if not readme.has_parts(text):
            return text, text
        return text, readme.filled(text, self.known, self.machines, self._relative(self.results_dir))

    def _relative(self, path: Path) -> str:
        return Path(os.path.relpath(path, self.output.parent)).as_posix()

    def _read(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")


def _replace(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename, so that a reader never finds half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8", newline="\n")
    os.replace(temporary, path)


def _first_difference(there: str, wanted: str) -> str:
    old, new = there.splitlines(), wanted.splitlines()
    at = next(
        (at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
    )
    return f"it differs from line {at + 1} on"
