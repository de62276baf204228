"""What is computed from raw records, in one place for every table and plot."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.records import Record

FINAL_LOSS_STEPS = 50
# Loss parity from the best to the worst. A class that is not listed ranks as "different".
PARITY_CLASSES = (
    "identical",
    "exact",
    "rounding",
    "local batch norm",
    "reduced precision",
    "another training",
    "different",
    "undecided",
    "not comparable",
)
_MIB = 2**20


@dataclass(frozen=True)
class Row:
    """One variant over its repeats. None where a value could not be had; `reason` says why."""

    variant: str
    status: str
    reason: str | None
    world_size: int | None = None
    device: str | None = None
    backend: str | None = None
    precision: str | None = None
    global_batch_size: int | None = None
    images_per_s: float | None = None
    step_ms: dict[str, float] | None = None
    warmup_steps: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_rss_bytes: int | None = None
    final_loss: float | None = None
    test_accuracy: float | None = None
    parity: dict[str, Any] | None = None
    record: str | None = None
    records: list[Record] = field(default_factory=list)


def loss_curve(raw: dict[str, Any]) -> np.ndarray:
    """The loss of the global batch at each step, float64 (steps,): the mean over ranks, as shares are equal.

    A loss that was NaN or infinite (null in the record) is NaN.
    """
    return np.array([part["loss"] for part in raw["ranks"]], dtype=np.float64).mean(axis=0)


def step_times_ms(raw: dict[str, Any]) -> np.ndarray:
    """The time of each step in ms, float64 (steps,): that of the slowest rank, for which the others wait."""
    return np.array([part["step_ms"] for part in raw["ranks"]], dtype=np.float64).max(axis=0)


def warmup_steps(raw: dict[str, Any]) -> int:
    """Leading steps left out of all times: as asked, but at most half of a short run."""
    return min(raw["config"]["warmup_steps"], raw["steps"] // 2)


def images_per_s(raw: dict[str, Any]) -> float:
    """Images of all ranks over the time of the steady steps, as the slowest rank took it."""
    first = warmup_steps(raw)
    slowest_ms = max(sum(part["step_ms"][first:]) for part in raw["ranks"])
    return (raw["steps"] - first) * raw["config"]["global_batch_size"] / (slowest_ms / 1000)


def final_loss(raw: dict[str, Any]) -> float | None:
    """The mean loss of the last 50 steps (of all when there are fewer); None when it is not finite."""
    value = loss_curve(raw)[-FINAL_LOSS_STEPS:].mean()
    return float(value) if np.isfinite(value) else None


def precision_label(raw: dict[str, Any]) -> str:
    """What was really computed in, such as "float32" or "float16 + scaler"."""
    precision = raw["precision"]
    return f"{precision['compute']}{' + scaler' if precision['scaler'] else ''}"


def row(records: Sequence[Record]) -> Row:
    """One row from the repeats of one variant (at least one record): medians over those that were ok.

    That holds for final loss and test accuracy too. Of memory it is the peak, of loss parity the worst class.
    With no repeat that was ok, the row says why of the first; with some, the first failure is its reason.
    """
    good = [record for record in records if record.ok]
    bad = [record for record in records if not record.ok]
    worst = bad[0] if bad else records[0]
    head = {
        "variant": worst.variant,
        "status": worst.status,
        "reason": worst.run.get("reason"),
        "records": list(records),
    }
    if not good:
        return Row(**head, record=worst.path.as_posix())
    raws = [record.raw for record in good]
    last = raws[-1]
    steady = [step_times_ms(raw)[warmup_steps(raw) :] for raw in raws]
    return Row(
        **head,
        world_size=last["world_size"],
        device=last["device"],
        backend=last["backend"],
        precision=precision_label(last),
        global_batch_size=last["config"]["global_batch_size"],
        images_per_s=statistics.median(images_per_s(raw) for raw in raws),
        step_ms={
            f"p{p}": statistics.median(float(np.percentile(times, p)) for times in steady)
            for p in (50, 90, 99)
        },
        warmup_steps=warmup_steps(last),
        peak_allocated_bytes=_peak(raws, "peak_allocated_bytes"),
        peak_reserved_bytes=_peak(raws, "peak_reserved_bytes"),
        peak_rss_bytes=_peak(raws, "peak_rss_bytes"),
        final_loss=_median([final_loss(raw) for raw in raws]),
        test_accuracy=_median([raw["epochs"][-1]["test_accuracy"] for raw in raws]),
        parity=worst_parity(record.run.get("parity") for record in good),
        record=good[-1].path.as_posix(),
    )


def _median(values: list[float | None]) -> float | None:
    """None as soon as one of them is not known: what diverged once must not vanish."""
    return None if None in values else statistics.median(values)


def worst_parity(found: Iterable[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The parity of the worst class, of equal classes that with the largest difference; None without any."""
    return max(filter(None, found), key=_badness, default=None)


def _badness(parity: dict[str, Any]) -> tuple[int, float]:
    kind = parity.get("class")
    known = kind if kind in PARITY_CLASSES else "different"
    return PARITY_CLASSES.index(known), parity.get("max_abs_diff") or 0.0


def pss_mib(raws: Sequence[dict[str, Any]]) -> float | None:
    """Host memory of all ranks together at the end of the run, MiB; the median of the repeats."""
    sums = []
    for raw in raws:
        parts = [part.get("pss_bytes") for part in raw["ranks"]]
        if None in parts:
            return None
        sums.append(sum(parts))
    return statistics.median(sums) / _MIB if sums else None


def per_rank(raws: Sequence[dict[str, Any]], key: str) -> list[float]:
    """The largest value of each rank over the repeats, by rank; empty where one is unknown."""
    values = [[part.get(key) for part in raw["ranks"]] for raw in raws]
    if not values or any(None in ranks for ranks in values):
        return []
    return [max(of_rank) for of_rank in zip(*values, strict=True)]


def _peak(raws: list[dict[str, Any]], key: str) -> int | None:
    """The most any one rank used in any repeat."""
    values = [part.get(key) for raw in raws for part in raw["ranks"]]
    return max(values) if values and None not in values else None
