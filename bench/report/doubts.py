"""What speaks against the numbers of a job: said before anything is concluded from them."""

from statistics import median

from bench.markdown import listing
from bench.report import cells
from bench.report.collect import Entry, Job
from bench.report.compare import ratio

WIDE = 0.2


def doubts(job: Job) -> list[str]:
    """Reasons to measure again, empty when there are none."""
    return [*_load(job), *_wide(job), *_too_good(job)]


def _load(job: Job) -> list[str]:
    """Other work beside the runs. The run before it leaves a load of one for each core: that is no sign."""
    busy = []
    for entry in job.timed:
        for record in entry.row.records:
            load, cores = record.run.get("load_average"), entry.last["environment"]["usable_cores"]
            if isinstance(load, list) and load and load[0] > cores + 1:
                busy.append((load[0], cores))
    if not busy:
        return []
    most, cores = max(busy)
    return [f"other work was running (a load average of up to {most:.1f} on {cells.count(cores, 'core')})"]


def _wide(job: Job) -> list[str]:
    wide = [f"{cells.name(entry)} {spread(entry):.0%}" for entry in job.timed if (spread(entry) or 0) > WIDE]
    apart = f"the repeats of some rows lie more than {WIDE:.0%} of their median apart"
    return [f"{apart} ({listing(wide)})"] if wide else []


def spread(entry: Entry) -> float | None:
    """How far the repeats lie apart, as a share of their median; None with one repeat."""
    rates = entry.rates
    return (max(rates) - min(rates)) / median(rates) if len(rates) > 1 else None


def _too_good(job: Job) -> list[str]:
    """Speed-ups that no number of ranks explains: then it is the reference that was slow."""
    if job.reference is None:
        return []
    found = []
    for entry in job.timed:
        against = ratio(entry, job.reference)
        if against and entry.row.world_size > 1 and against.low > entry.row.world_size:
            found.append(f"{cells.name(entry)} {against}")
    return (
        [f"speed-ups beyond the number of ranks ({listing(found)}) mean that `single` was held up"]
        if found
        else []
    )
