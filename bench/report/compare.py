"""Whether one row is faster than another, and by how much. Every such claim in the report is made here."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

from bench.report.collect import Entry

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

    def manner(which: Entry) -> tuple[str | None, ...]:
        raw = which.last
        return raw.get("timing_method"), raw.get("device"), raw.get("environment", {}).get("host")

    return manner(entry) == manner(other)


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
