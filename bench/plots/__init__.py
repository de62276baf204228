"""The figures of the report. Each module has `ALT`, `data(job)`, plain values or None where there is nothing
to show, and `draw(data)`, a matplotlib Figure that depends on nothing else. Those of STUDY_FIGURES are made
of a machine's studies: `data(machine)`."""

from types import ModuleType

from bench.plots import loss, memory, steps, throughput

FIGURES = {module.__name__.rpartition(".")[2]: module for module in (throughput, loss, steps, memory)}
STUDY_FIGURES: dict[str, ModuleType] = {}
