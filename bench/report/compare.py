"""Whether one row is faster than another, and by how much. Every such claim in the report is made here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

from bench.report.collect import Entry, Job

_SAME = ("identical", "exact", "rounding")


@dataclass(frozen=True)
class Ratio:
    """How many times as fast: by the medians, and the least and the most that the repeats allow."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f}x"

    @property
    def interval(self) -> str:
        return f"{self.low:.2f} to {self.high:.2f}"


def ratio(entry: Entry, other: Entry) -> Ratio | None:
    """`entry` over `other` in images/s; None where either was not measured or not in the same way."""
    if not entry.rates or not other.rates or not comparable(entry, other):
        return None
    a, b = entry.rates, other.rates
    return Ratio(median(a) / median(b), min(a) / max(b), max(a) / min(b))


def comparable(entry: Entry, other: Entry) -> bool:
    """Whether both were timed alike, on the same kind of device of the same computer."""
    return incomparable(entry, other) is None


def incomparable(entry: Entry, other: Entry) -> str | None:
    """Why the times of the two cannot be held against each other; None when they can."""
    one, two = entry.last, other.last
    if one.get("environment", {}).get("host") != two.get("environment", {}).get("host"):
        return "measured on another host"
    if one.get("device") != two.get("device"):
        return f"measured on {one.get('device')}, not on {two.get('device')}"
    return None if one.get("timing_method") == two.get("timing_method") else "timed in another way"


def differs(a: Sequence[float], b: Sequence[float]) -> bool | None:
    """Whether two rows differ by more than their repeats do among themselves: their ranges do not overlap.

    None when it cannot be known, since one of them has no second repeat.
    """
    if min(len(a), len(b)) < 2:
        return None
    return max(a) < min(b) or max(b) < min(a)


def chance(a: int, b: int) -> float:
    """How often `differs` says so of two equal rows with `a` and `b` repeats, by chance alone."""
    return 2 / comb(a + b, a)


def comparisons(job: Job, parents: Mapping[str, str | None]) -> list[tuple[Entry, Entry]]:
    """The pairs of rows that the report says are or are not different, each pair once.

    Every row against `single` and against its parent, and the fastest rows against all others.
    """
    timed = [entry for entry in job.timed if len(entry.rates) > 1]
    by_name = {entry.variant: entry for entry in timed}
    ranked = [entry for entry in timed if not entry.unranked]
    safe = [entry for entry in ranked if same_training(entry)]
    pairs = [(entry, job.reference) for entry in timed if job.reference in timed]
    pairs += [(entry, by_name[name]) for entry in timed if (name := parents.get(entry.variant)) in by_name]
    for group in filter(None, (safe, ranked)):
        first = max(group, key=lambda entry: median(entry.rates))
        pairs += [(entry, first) for entry in group]
    found = {frozenset((a.label, b.label)): (a, b) for a, b in pairs if a is not b and comparable(a, b)}
    return list(found.values())


def by_chance(pairs: Iterable[tuple[Entry, Entry]]) -> float:
    """In how many of these comparisons equal rows would count as different."""
    return sum(chance(len(a.rates), len(b.rates)) for a, b in pairs)


def verdict(entry: Entry, other: Entry) -> str:
    """`faster`, `slower`, or why neither can be said."""
    told_apart = differs(entry.rates, other.rates)
    if told_apart is None:
        return "spread unknown: one repeat"
    if not told_apart:
        return "no difference beyond the spread"
    return "faster" if median(entry.rates) > median(other.rates) else "slower"


def same_training(entry: Entry) -> bool:
    """Whether the loss curve is that of `single`, up to the order of additions (see bench/parity.py)."""
    return entry.variant == "single" or (entry.row.parity or {}).get("class") in _SAME
