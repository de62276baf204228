"""The section of one machine: recommendation, main table, plots, training, memory."""

from dataclasses import dataclass

from bench import derive
from bench.markdown import code, details, escape, fence, html, listing, table
from bench.report import cells
from bench.report.advice import advice
from bench.report.collect import Entry, Job, Machine
from bench.report.compare import ratio
from bench.report.sections import SECTIONS

CLASSES = {
    "identical": "no step differs in one bit",
    "exact": "float64, within the tolerance at every step",
    "rounding": "the same precision, no further apart than the order of additions explains",
    "local batch norm": "each rank normalises by its own images: `ddp`, or as near to it as rounding is",
    "reduced precision": "computed in a narrower type than `single`",
    "another training": "the technique changes the training on purpose, as its docstring says",
    "different": "none of these explains the difference",
    "undecided": "a run that would tell rounding from a real difference is missing",
    "not comparable": "there was nothing to compare with, or other steps",
}


@dataclass(frozen=True)
class Context:
    """What a section needs besides its machine: of the variants there are, and its figures in Markdown."""

    parents: dict[str, str | None]
    differs: dict[str, str | None]
    methods: set[str]
    probes: set[str]
    pictures: dict[str, str]


def title(machine: Machine) -> str:
    """`AMD EPYC, 2 cores, no GPU`, from what the records say."""
    if not machine.environments:
        return machine.folder.name
    last = machine.environments[-1]
    gpus = last.get("gpus") or []
    kinds = [f"{gpus.count(kind)} x {kind}" for kind in dict.fromkeys(gpus)]
    cores = cells.count(last.get("usable_cores") or 1, "core")
    return ", ".join([str(last.get("cpu")), cores, *(kinds or ["no GPU"])])


def section(machine: Machine, context: Context) -> str:
    whole = machine.main
    job = whole.without(context.probes)  # of a probe only the training is of interest
    parts = [
        f"## {escape(title(machine))} ({code(machine.folder.name)})",
        "### Which method should I use here?",
        advice(job, context.parents, context.methods, title(machine)),
        "### Results",
        *_caveats(whole),
        _legend(job),
        speed_table(job),
        _emulated(job),
        *_logs(whole),
        context.pictures["throughput"],
        context.pictures["steps"],
        "### Is it still the same training?",
        training_table(whole, context.differs),
        _classes(whole),
        context.pictures["loss"],
        "### Memory",
        memory_table(job),
        context.pictures["memory"],
        *(module.section(machine, context.pictures) for module in SECTIONS),
        *_other_jobs(machine, context.probes),
    ]
    return "\n\n".join(part for part in parts if part)


def speed_table(job: Job) -> str:
    header = [
        "Variant",
        "Status",
        "Origin",
        "World size x threads",
        "Precision",
        "images/s",
        "least to most",
        "vs single",
    ]
    header += ["Step p50, ms", "p90, ms", "p99, ms"]
    sizes = _own_one_rank(job)
    if sizes:
        header.append("vs own 1 rank")
    rows = [_speed_row(entry, job) + ([_scaling(entry, sizes)] if sizes else []) for entry in job.entries]
    return table(header, rows, "lllll" + "r" * 7)


def _speed_row(entry: Entry, job: Job) -> list[str]:
    row, rates = entry.row, entry.rates
    spread = (
        f"{min(rates):,.0f} to {max(rates):,.0f}"
        if len(rates) > 1
        else "one repeat"
        if rates
        else cells.NOTHING
    )
    times = (
        [cells.milliseconds(value) for value in row.step_ms.values()] if row.step_ms else [cells.NOTHING] * 3
    )
    return [
        cells.name(entry),
        cells.status(entry),
        cells.origin(entry),
        cells.threads(entry),
        row.precision or cells.NOTHING,
        cells.whole(row.images_per_s),
        spread,
        _against(entry, job.reference),
        *times,
    ]


def _against(entry: Entry, reference: Entry | None) -> str:
    if not entry.raws:
        return cells.NOTHING
    if reference is None:
        return f"unavailable: {cells.why_no_ratio(entry, reference)}"
    if entry is reference:
        return "reference"
    found = ratio(entry, reference)
    return cells.factor(found) if found else f"unavailable: {cells.why_no_ratio(entry, reference)}"


def _own_one_rank(job: Job) -> dict[str, Entry]:
    """By variant, its run with one rank, where it also ran with more: what a wrapper costs by itself."""
    one = {entry.variant: entry for entry in job.timed if entry.row.world_size == 1}
    more = {entry.variant for entry in job.timed if entry.row.world_size > 1}
    return {variant: entry for variant, entry in one.items() if variant in more}


def _scaling(entry: Entry, sizes: dict[str, Entry]) -> str:
    base = sizes.get(entry.variant)
    found = ratio(entry, base) if base and entry is not base else None
    return cells.factor(found) if found else cells.NOTHING


def training_table(job: Job, differs: dict[str, str | None]) -> str:
    """`differs`: by variant, why it trains otherwise on purpose; None where it means not to."""
    if not job.timed:
        return "Nothing ran to its end."
    header = ["Variant", "Final loss", "Test accuracy", "Loss parity", "largest difference", "tolerance"]
    return table(header, [_training_row(entry, job.reference, differs) for entry in job.timed], "lrrlrr")


def _training_row(entry: Entry, reference: Entry | None, differs: dict[str, str | None]) -> list[str]:
    row, parity = entry.row, {} if entry is reference else entry.row.parity or {}
    kind = "reference" if entry is reference else escape(parity["class"]) if parity else "not compared"
    reason = f": {escape(parity['reason'])}" if parity.get("reason") else ""
    if parity and differs.get(entry.variant):
        reason += f"; on purpose: {escape(differs[entry.variant])}"
    return [
        cells.name(entry),
        cells.decimals(row.final_loss, 4),
        cells.percent(row.test_accuracy),
        kind + reason,
        cells.power(parity.get("max_abs_diff")),
        cells.power(parity.get("tolerance"))
        if parity.get("tolerance") is not None or not parity
        else "no bound",
    ]


def _classes(job: Job) -> str:
    """What the classes in the table mean."""
    seen = {(entry.row.parity or {}).get("class") for entry in job.timed}
    meanings = [f"*{kind}*: {meaning}" for kind, meaning in CLASSES.items() if kind in seen]
    return (
        "Final loss and test accuracy are medians over the repeats. Loss parity holds the loss of every "
        f"step against `single`; it is that of the worst repeat. {'; '.join(meanings)}."
        if meanings
        else ""
    )


def memory_table(job: Job) -> str:
    """Host memory, and that of the GPU or why there is none."""
    on_gpu = any(entry.row.peak_reserved_bytes is not None for entry in job.timed)
    header = ["Variant", "Peak RSS of the fullest rank, MiB", "PSS of all ranks at the end, MiB"]
    rows = [[cells.name(entry), _mib(entry.row.peak_rss_bytes), _pss(entry)] for entry in job.timed]
    for title_of, key in _STATE.items():
        held = [derive.per_rank(entry.raws, key) for entry in job.timed]
        if any(held):
            header.append(title_of)
            for row, each in zip(rows, held, strict=True):
                row.append(_kib(each))
    if on_gpu:
        header += ["Peak allocated, MiB", "Peak reserved, MiB"]
        for row, entry in zip(rows, job.timed, strict=True):
            row += [_mib(entry.row.peak_allocated_bytes), _mib(entry.row.peak_reserved_bytes)]
    missing = "" if on_gpu else "\n\nPeak allocated and reserved: unavailable: nothing ran on a GPU here."
    note = "\n\nRSS counts a page that ranks share in each of them, PSS only once: PSS adds up over ranks."
    return (
        table(header, rows, "l" + "r" * (len(header) - 1)) + missing + note
        if rows
        else "Nothing ran to its end."
    )


_STATE = {
    "Weights per rank, KiB": "weight_bytes",
    "Optimizer state per rank, KiB": "optimizer_bytes",
}


def _kib(ranks: list[float]) -> str:
    """One value where all ranks hold as much, else each by rank."""
    if not ranks:
        return cells.NOTHING
    return ", ".join(f"{value / 1024:,.0f}" for value in (ranks if len(set(ranks)) > 1 else ranks[:1]))


def _mib(value: int | None) -> str:
    return "unavailable: not told here" if value is None else cells.mib(value)


def _pss(entry: Entry) -> str:
    value = derive.pss_mib(entry.raws)
    return "unavailable: not told here" if value is None else cells.whole(value)


def _legend(job: Job) -> str:
    repeats = max((len(entry.rates) for entry in job.timed), default=0)
    if not repeats:
        return ""
    middle = f"Medians of up to {cells.count(repeats, 'repeat')}" if repeats > 1 else "One repeat each"
    return (
        f"{middle}; images/s is of all ranks together; what stands in brackets after a ratio is the least "
        "and the most that the repeats allow. All numbers of a row are of the origin it "
        f"names.{_compiled(job)}"
    )


def _compiled(job: Job) -> str:
    """Seconds of torch.compile on the slowest rank, the most of the repeats."""
    spent = {entry.label: max(derive.per_rank(entry.raws, "compile_s"), default=None) for entry in job.timed}
    parts = [f"{code(label)} {value:.1f}" for label, value in spent.items() if value is not None]
    what = "Seconds in torch.compile, the most of the repeats (few where its cache had the code)"
    return f" {what}: {listing(parts)}." if parts else ""


def _emulated(job: Job) -> str:
    parts = [f"{cells.name(entry)}: {escape(entry.emulated)}" for entry in job.timed if entry.emulated]
    return f"Emulated, so that its times are those of a stand-in: {'; '.join(parts)}." if parts else ""


def _caveats(job: Job) -> list[str]:
    """Where the rows of a table were not made alike: by another commit, other packages, another computer."""
    found = []
    for what, of in _ALIKE.items():
        values: dict[str, list[Entry]] = {}
        for entry in job.timed:
            values.setdefault(str(of(entry)), []).append(entry)
        if len(values) > 1:
            parts = [f"{escape(value)} ({cells.names(entries)})" for value, entries in values.items()]
            found.append(f"{what}: {listing(parts)}")
    return [f"**Not all rows were made alike.** {'. '.join(found)}."] if found else []


def _commit(entry: Entry) -> str:
    run = entry.row.records[-1].run
    return f"{str(run.get('commit'))[:12]}{' with changes' if run.get('dirty') else ''}"


_ALIKE = {
    "Commit": _commit,
    "Code of the core": lambda entry: entry.row.records[-1].run.get("code"),
    "torch": lambda entry: entry.last["environment"]["packages"].get("torch"),
    "Computer": lambda entry: entry.last["environment"].get("host"),
    "Device": lambda entry: entry.last.get("device"),
    "Timing": lambda entry: entry.last.get("timing_method"),
}


def _flag(key: str, value: object) -> str:
    """How a job differs in one flag from the one above; None is a flag that was not given."""
    flag = f"--{key.replace('_', '-')}"
    return f"without {flag}" if value is None else f"{flag} {value}"


def _logs(job: Job) -> list[str]:
    """The last lines of what went wrong, folded."""
    folded = []
    for entry in job.entries:
        tails = [record.run.get("log_tail") for record in entry.row.records if not record.ok]
        if tails and isinstance(tails[0], list) and tails[0]:
            summary = f"The last lines of <code>{html(entry.label)}</code>"
            folded.append(details(summary, fence("\n".join(map(str, tails[0])), "text")))
    return folded


def _other_jobs(machine: Machine, probes: set[str]) -> list[str]:
    """Runs with other flags, which are comparable among themselves only."""
    if not machine.jobs[1:]:
        return []
    folded = []
    for job in machine.jobs[1:]:
        changed = {key: value for key, value in job.config.items() if machine.main.config.get(key) != value}
        flags = " ".join(_flag(key, value) for key, value in sorted(changed.items()))
        table_of = speed_table(job.without(probes))
        folded.append(details(f"<code>{html(flags or 'no flags recorded')}</code>", table_of))
    return ["### Other jobs here", "With other flags than above, so not to be compared with it.", *folded]
