"""How the numbers were measured and what limits them, and the machines they come from."""

from collections.abc import Collection, Iterable
from typing import Any
from urllib.parse import quote

from bench.derive import warmup_steps
from bench.markdown import bullets, code, details, escape, listing, table
from bench.records import Record
from bench.report import cells
from bench.report.collect import Entry, Job, Machine
from bench.report.compare import by_chance, chance, comparisons
from bench.report.machine import title

_CLOCKS = {
    "perf_counter": "the processor's clock (`time.perf_counter`) read at the end of each step",
    "CUDA events": "CUDA events recorded at the end of each step, read after the epoch: no step waits for it",
}


def section(
    machines: list[Machine], base: str, parents: dict[str, str | None], probes: Collection[str] = ()
) -> str:
    """`base`: the path from the report to the folder of results."""
    parts = ["## How it was measured, and what limits it"]
    for machine in machines:
        if len(machines) > 1:
            parts.append(f"### {escape(title(machine))}: how")
        parts += [
            bullets(_how(machine.main, parents, probes)),
            details("Every run, with its record", _runs(machine, base)),
        ]
    return "\n\n".join(parts)


def _how(job: Job, parents: dict[str, str | None], probes: Collection[str]) -> list[str]:
    timed = job.timed
    if not timed:
        return ["Nothing was measured: no run came to its end."]
    raws = [raw for entry in timed for raw in entry.raws]
    cut = _distinct(f"{warmup_steps(raw)} of {raw['steps']}" for raw in raws)
    clocks = _distinct(raw.get("timing_method") for raw in raws)
    lines = [
        "A step reaches from the end of one optimizer step to the end of the next: loading, copying, "
        "forward, backward, optimizer. Evaluation, checkpoints and start-up are not in it.",
        f"Timing: {listing([_CLOCKS.get(clock, escape(clock)) for clock in clocks])}. A step takes as "
        "long as its slowest rank; images/s are the images of all ranks over the time of the slowest.",
        f"Warmup: the first {listing(cut, 'or')} steps are trained but not timed.",
        _repeats(timed),
        _threads(timed),
        *_load(timed),
        f"Flags of every run: {code(_flags(job.config), longest=10_000)}",
        _CHOICE,
    ]
    return [*lines, *_limits(job, parents, probes)]


_CHOICE = (
    "Of the commands that ran a row with these flags, the report takes one: of those made with the same "
    "code, commit, packages and computer as the newest, that with the most repeats, and of equals the "
    "newest (a run with uncommitted changes equals no other). Times, final loss and test accuracy are "
    "medians over its repeats, memory is the largest, loss parity the worst."
)


def _distinct(values: Iterable[Any]) -> list[str]:
    return sorted({str(value) for value in values})


def _repeats(timed: list[Entry]) -> str:
    records = [record for entry in timed for record in entry.row.records]
    most = max(len(entry.row.records) for entry in timed)
    fewer: dict[int, list[Entry]] = {}
    for entry in timed:
        if len(entry.row.records) < most:
            fewer.setdefault(len(entry.row.records), []).append(entry)
    less = "".join(f", {number} of {cells.names(entries)}" for number, entries in sorted(fewer.items()))
    manner = (
        "interleaved, so that a drift of the machine meets all of them"
        if _interleaved(records)
        else "the repeats of a variant one after the other"
        if most > 1
        else "one after the other"
    )
    return f"Repeats: {most} of each variant{less}; {manner}."


def _when(record: Record) -> tuple[str, int]:
    return str(record.run.get("launched_at") or ""), record.run.get("order") or 0


def _interleaved(records: list[Record]) -> bool:
    """Whether each command with repeats ran them in rounds: A B C, then C B A, ..."""
    commands: dict[str, list[Record]] = {}
    for record in sorted(records, key=_when):
        commands.setdefault(str(record.run.get("command_id")), []).append(record)
    several = False
    for made in commands.values():
        rounds = [record.run.get("repeat") or 0 for record in made]
        if len(set(rounds)) > 1:
            several = True
            if rounds != sorted(rounds) or len({record.variant for record in made}) == 1:
                return False
    return several


def _threads(timed: list[Entry]) -> str:
    cores = listing(
        _distinct(raw["environment"]["usable_cores"] for entry in timed for raw in entry.raws), "or"
    )
    parts = {cells.threads(entry): [] for entry in timed}
    for entry in timed:
        parts[cells.threads(entry)].append(entry)
    shares = "; ".join(f"{share} for {cells.names(entries)}" for share, entries in parts.items())
    return (
        f"Threads, as the ranks recorded them (ranks x threads of each, on {cores} usable cores): {shares}."
    )


def _load(timed: list[Entry]) -> list[str]:
    loads = [record.run.get("load_average") for entry in timed for record in entry.row.records]
    first = [load[0] for load in loads if isinstance(load, list) and load]
    if not first:
        return ["Load average: unavailable: this system does not tell."]
    return [f"Load average (1 minute) when a run started: {min(first):.2f} to {max(first):.2f}."]


def _flags(config: dict[str, Any]) -> str:
    given = {key: value for key, value in config.items() if value is not None}
    return " ".join(f"--{key.replace('_', '-')} {value}" for key, value in given.items())


def _limits(job: Job, parents: dict[str, str | None], probes: Collection[str]) -> list[str]:
    timed = job.timed
    pairs = comparisons(job.without(probes), parents)
    counts = sorted({len(entry.rates) for pair in pairs for entry in pair})
    lines = []
    if pairs:
        lines.append(
            "Two rows count as different when the ranges of their repeats do not overlap. With "
            f"{listing(_distinct(counts), 'or')} repeats each, two equal rows do so by chance in about "
            f"{chance(counts[0], counts[0]):.0%} of comparisons. Here "
            f"{cells.count(len(pairs), 'comparison')} were made (each row against `single` and against "
            "its parent, the fastest against the others): were all rows equally fast, about "
            f"{by_chance(pairs):.1f} of them would say `different` by chance. How far two runs of the "
            "very same thing lie apart on another day was not measured."
        )
    if any(record.run.get("dirty") for entry in timed for record in entry.row.records):
        lines.append("Some runs were made with changes that no commit holds: marked below.")
    if any(entry.row.device == "cpu" and entry.row.world_size > 1 for entry in timed):
        lines.append(
            "On a CPU the ranks share cores, caches and memory bandwidth: the speed-up of several ranks "
            "says nothing about several GPUs."
        )
    return lines


def _runs(machine: Machine, base: str) -> str:
    """Every run of the main job, with the record that holds its raw numbers."""
    header = ["Variant", "Repeat", "Order", "Started", "Load", "Commit", "Wall time, s", "images/s", "Record"]
    rows = []
    for entry in machine.main.entries:
        rates = iter(entry.rates)
        rows += [
            _run(entry, record, next(rates) if record.ok else None, machine, base)
            for record in entry.row.records
        ]
    return table(header, rows, "lrrlrlrrl")


def _run(entry: Entry, record: Record, rate: float | None, machine: Machine, base: str) -> list[str]:
    run = record.run
    load = run.get("load_average")
    commit = str(run.get("commit") or "unknown")[:12] + (" with changes" if run.get("dirty") else "")
    path = f"{base}/{machine.folder.name}/{record.path.relative_to(machine.folder).as_posix()}"
    return [
        cells.name(entry),
        str((run.get("repeat") or 0) + 1),
        _place(run.get("order")),
        escape(run.get("launched_at") or "unknown"),
        f"{load[0]:.2f}" if isinstance(load, list) and load else cells.NOTHING,
        escape(commit),
        cells.decimals(run.get("wall_s"), 1),
        cells.whole(rate) if record.ok else escape(record.status),
        f"[JSON]({quote(path)})",
    ]


def _place(order: int | None) -> str:
    """The place of a run within its command, from 1; a reference run goes before the first."""
    if order is None:
        return cells.NOTHING
    return "before" if order < 0 else str(order + 1)


_FACTS = {
    "Processor": lambda env: env.get("cpu"),
    "Instructions": lambda env: env.get("cpu_capability"),
    "Usable cores": lambda env: env.get("usable_cores"),
    "Memory": lambda env: cells.gib(env.get("memory_bytes")),
    "GPUs": lambda env: ", ".join(env.get("gpus") or []) or "none",
    "Operating system": lambda env: env.get("os"),
    "Python": lambda env: env.get("python"),
    "torch": lambda env: env["packages"].get("torch"),
    "torchvision": lambda env: env["packages"].get("torchvision"),
    "NumPy": lambda env: env["packages"].get("numpy"),
    "accelerate": lambda env: env["packages"].get("accelerate") or "not installed",
    "apex": lambda env: env["packages"].get("apex") or "not installed",
    "CUDA": lambda env: env.get("cuda") or "none",
    "cuDNN": lambda env: env.get("cudnn") or "none",
    "NCCL": lambda env: env.get("nccl") or "none",
    "Computer": lambda env: env.get("host"),
}


def machines_section(machines: list[Machine]) -> str:
    """The machines side by side. Where the records of one disagree, all values are shown."""
    known = [machine for machine in machines if machine.environments]
    header = ["", *(code(machine.folder.name) for machine in known)]
    rows = []
    for fact, of in _FACTS.items():
        values = [_distinct(of(environment) for environment in machine.environments) for machine in known]
        rows.append([fact, *(escape("; ".join(found)) for found in values)])
    heading = "## The machine" if len(machines) == 1 else "## The machines"
    note = "Computer is a digest of its name, which tells machines apart without giving the name away."
    return f"{heading}\n\n{table(header, rows)}\n\n{note}" if known else ""


def not_run_section(machines: list[Machine]) -> str:
    """What has no number in this report, and why: rows that failed, and the devices no machine here has."""
    lines = [
        f"{cells.name(entry)} on {escape(title(machine))}: {escape(entry.failure)}."
        for machine in machines
        for entry in machine.main.entries
        if not entry.raws
    ]
    timed = [entry for machine in machines for job in machine.jobs for entry in job.timed]
    if not any(str(entry.row.device).startswith("cuda") for entry in timed):
        lines.append(
            "GPUs: unavailable: no machine with a GPU has results here (`make gpu-check` makes them)."
        )
    return f"## What did not run here\n\n{bullets(lines)}" if lines else ""
