"""How sure a number is: medians with intervals, and when two of them differ.

Rules of the whole project: a value over repeats is their median; how much faster A is than B is the median of
the ratios within each round, as a drift of the machine meets both alike there; intervals are bootstrap
intervals of that median at 95%; and a difference smaller than the machine's noise floor is none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
FEWEST = 3
"""Repeats below which there is no interval: two values do not tell how far a third may lie."""


@dataclass(frozen=True)
class Interval:
    """A value with its 95% interval; `low` and `high` are None where the repeats were fewer than FEWEST."""

    value: float
    low: float | None = None
    high: float | None = None
    count: int = 1

    @property
    def known(self) -> bool:
        """Whether there is an interval at all."""
        return self.low is not None


def median(values: Sequence[float]) -> Interval:
    """The median of positive `values` (at least one) with its interval."""
    value = float(np.median(values))
    if len(values) < FEWEST:
        return Interval(value, count=len(values))
    low, high = _bootstrap(np.asarray(values, dtype=np.float64))
    return Interval(value, low, high, len(values))


def ratio(rounds: Sequence[float], reference: Sequence[float]) -> Interval:
    """How many times `reference` the values are: of the ratios within each round, in the order of rounds."""
    if len(rounds) != len(reference):
        raise ValueError(f"{len(rounds)} rounds against {len(reference)}")
    return median([a / b for a, b in zip(rounds, reference, strict=True)])


def differs(found: Interval, floor: float) -> bool | None:
    """Whether a ratio differs from 1 by more than chance and by more than `floor` (0.02 for 2%).

    None when it cannot be known: there is no interval.
    """
    if found.low is None or found.high is None:
        return None
    beyond_floor = abs(math.log(found.value)) > math.log1p(floor)
    return beyond_floor and not found.low <= 1 <= found.high


def _bootstrap(values: np.ndarray) -> tuple[float, float]:
    resampled = np.random.default_rng(0).choice(values, (2000, len(values)))
    low, high = np.quantile(np.median(resampled, axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
