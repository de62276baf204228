"""Whether a variant still trains as `single` does: its loss curve against that of a reference run."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from bench.derive import final_loss, loss_curve
from bench.plan import REFERENCE
from bench.records import Record

EXACT_TOLERANCE = 1e-9
_NOT_COMPARED = ("warmup_steps", "timeout", "amp_dtype")  # they change no step of `single`
_LOCAL_NORMS = {"BatchNorm1d", "BatchNorm2d", "BatchNorm3d"}


def rounding_tolerance(steps: int, dtype: str) -> float:
    """How far two loss curves may lie apart when only the order of additions differs.

    One step differs by a few units in the last place (2e-7 in float32); each further step trains on from
    weights that differ already, so the allowance grows with their number: for float32 1e-5 up to 50 steps,
    and in proportion from there. Narrower and wider dtypes scale it by their machine epsilon.
    """
    epsilon = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
    return 1e-5 * max(1.0, steps / 50) * epsilon[dtype] / epsilon["float32"]


def find_reference(
    records: Iterable[Record], environment: dict[str, Any], config: dict[str, Any], code: str
) -> Record | None:
    """The newest ok run of `single` on this very machine, code and configuration, or None."""
    wanted = comparable(config)
    fitting = [
        record
        for record in records
        if is_reference(record)
        and record.raw["environment"] == environment
        and record.run.get("code") == code
        and comparable(record.raw["config"]) == wanted
    ]
    return max(fitting, key=lambda record: record.run["launched_at"]) if fitting else None


def is_reference(record: Record) -> bool:
    """Whether it is a run of `single`, from the first step to the last: others can be held against it."""
    return (
        record.variant == REFERENCE
        and record.ok
        and len(record.raw["epochs"]) == record.raw["config"]["epochs"]
    )


def comparable(config: dict[str, Any]) -> dict[str, Any]:
    """Of a configuration, what a reference run must share."""
    return {name: value for name, value in config.items() if name not in _NOT_COMPARED}


def parity(raw: dict[str, Any], reference: Record | None) -> dict[str, Any]:
    """The `parity` of a record: {reference, class, max_abs_diff, final_abs_diff, tolerance, reason}.

    class is one of
        identical           no step differs in one bit
        exact               float64, within 1e-9 at every step
        rounding            the same precision, within `rounding_tolerance`
        local batch norm    each rank normalises by its own images, as DDP does with plain batch norm
        reduced precision   computed in a narrower dtype than the reference
        different           none of these explains it
        not comparable      other steps, or no reference; `reason` says which
    tolerance: what held for the class; null where the class is no bound.
    """
    if reference is None:
        return _verdict(
            None, "not comparable", reason=f"there is no finished run of {REFERENCE} to compare with"
        )
    curve, wanted = loss_curve(raw), loss_curve(reference.raw)
    if len(curve) != len(wanted):
        return _verdict(
            reference, "not comparable", reason=f"{len(curve)} steps, where {REFERENCE} made {len(wanted)}"
        )
    difference = np.abs(curve - wanted)
    if not np.isfinite(difference).all():
        return _verdict(reference, "not comparable", reason="a loss is not finite")
    largest = float(difference.max())
    kind, tolerance = _classify(raw, reference.raw, largest, len(curve))
    last = abs(final_loss(raw) - final_loss(reference.raw))
    return _verdict(reference, kind, max_abs_diff=largest, final_abs_diff=last, tolerance=tolerance)


def _verdict(reference: Record | None, kind: str, **known: Any) -> dict[str, Any]:
    unknown = {"max_abs_diff": None, "final_abs_diff": None, "tolerance": None, "reason": None}
    return {"reference": reference.path.name if reference else None, "class": kind, **unknown, **known}


def _classify(
    raw: dict[str, Any], reference: dict[str, Any], largest: float, steps: int
) -> tuple[str, float | None]:
    """(class, tolerance), from the largest difference and from what the records say really ran."""
    computed, wanted = raw["precision"]["compute"], reference["precision"]["compute"]
    if largest == 0.0:
        return "identical", 0.0
    if computed != wanted:
        return ("reduced precision" if _bits(computed) < _bits(wanted) else "different"), None
    if computed == "float64" and largest <= EXACT_TOLERANCE:
        return "exact", EXACT_TOLERANCE
    tolerance = rounding_tolerance(steps, computed)
    if largest <= tolerance:
        return "rounding", tolerance
    local_norm = raw["world_size"] > 1 and _LOCAL_NORMS.intersection(raw.get("batch_norms") or [])
    if local_norm and raw.get("replicated", True):
        return "local batch norm", None
    return "different", tolerance


def _bits(dtype: str) -> int:
    return 16 if dtype == "bfloat16" else int(dtype.removeprefix("float"))
