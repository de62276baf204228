"""The figures of the report. Each module has `data(job)`, plain values or None where there is nothing to
show, and `draw(data)`, a matplotlib Figure that depends on nothing else."""

from bench.plots import loss, memory, steps, throughput

FIGURES = {module.__name__.rpartition(".")[2]: module for module in (throughput, loss, steps, memory)}
