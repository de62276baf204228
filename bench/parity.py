"""Whether a variant still trains as `single` does: its loss curve against that of a reference run."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from bench.derive import final_loss, loss_curve
from bench.plan import REFERENCE
from bench.records import Record

TWIN = "single_reordered"
UNDECIDED = "undecided"
EXACT_TOLERANCE = 1e-9
LOCAL = "ddp"
YARDSTICKS = (REFERENCE, TWIN, LOCAL)
TWIN_FACTOR, CAP_FACTOR, LAST_PLACES = 10.0, 3.0, 8
_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
_NOT_COMPARED = ("warmup_steps", "timeout", "amp_dtype", "opt_level")  # they change no step of `single`
_LOCAL_NORMS = {"BatchNorm1d", "BatchNorm2d", "BatchNorm3d"}


def rounding_tolerance(reference: dict[str, Any], twin: dict[str, Any]) -> np.ndarray:
    """How far a loss may lie from the reference at each step when only the order of additions differs.

    Measured, not guessed: `twin` is the same training with each batch in reverse order and through other
    kernels, so all that parts it from the reference is rounding and what training makes of it, which grows
    from step to step at a rate that depends on network, data and learning rate. Allowed is ten times the
    largest distance the twin has had by then (a tenfold seed of the same growth), where "then" is ten steps
    or a tenth later: the drift jumps when a ReLU or a maximum tips over, and not in the same step. The
    drift saturates, so it is at most three times the twin's largest distance of the whole run; and it is at
    least ten times eight units in the last place of the loss. float64 (steps,).
    """
    curve = loss_curve(reference)
    largest = np.maximum.accumulate(np.abs(loss_curve(twin) - curve))
    steps = np.arange(len(curve))
    by_then = largest[np.minimum(steps + np.maximum(10, steps // 10), len(curve) - 1)]
    last_places = LAST_PLACES * _EPSILON[reference["precision"]["compute"]] * np.abs(curve)
    return np.maximum(np.minimum(TWIN_FACTOR * by_then, CAP_FACTOR * largest[-1]), TWIN_FACTOR * last_places)


def find_reference(
    records: Iterable[Record],
    environment: dict[str, Any],
    config: dict[str, Any],
    code: str,
    name: str = REFERENCE,
    world_size: int = 1,
) -> Record | None:
    """The newest ok run of the variant `name` on this very machine, code and configuration, or None."""
    wanted = comparable(config)
    fitting = [
        record
        for record in records
        if is_reference(record, name)
        and record.raw["world_size"] == world_size
        and record.raw.get("environment") == environment
        and record.run.get("code") == code
        and comparable(record.raw["config"]) == wanted
    ]
    return max(fitting, key=lambda record: record.run["launched_at"]) if fitting else None


def is_reference(record: Record, name: str = REFERENCE) -> bool:
    """Whether it is a run of `name`, from the first step to the last: others can be held against it."""
    whole = record.ok and len(record.raw["epochs"]) == record.raw["config"]["epochs"]  # or it was resumed
    return whole and record.variant == name


def comparable(config: dict[str, Any]) -> dict[str, Any]:
    """Of a configuration, what a reference run must share."""
    return {name: value for name, value in config.items() if name not in _NOT_COMPARED}


def needs(found: dict[str, Any] | None) -> str | None:
    """The variant without whose run a verdict was put off, or None."""
    return found["needs"] if found is not None and found["class"] == UNDECIDED else None


def parity(
    raw: dict[str, Any],
    reference: Record | None,
    twin: Record | None = None,
    local: Record | None = None,
) -> dict[str, Any]:
    """The `parity` of a record: {reference, twin, class, max_abs_diff, final_abs_diff, tolerance, ...}.

    class is one of
        identical           no step differs in one bit
        exact               float64, within 1e-9 at every step
        rounding            the same precision, within `rounding_tolerance` at every step
        local batch norm    each rank normalises by its own images: plain `ddp`, or as near to a run of it
                            on as many ranks (`local`) as rounding explains
        reduced precision   computed in a narrower dtype than the reference
        different           none of these explains it
        undecided           the twin that would tell rounding from these was stopped, or failed
        not comparable      other steps, or no reference; `reason` says which
    tolerance: that of the last step; null where the class is no bound. first_step_beyond: the first step,
    from 1, that lies outside of it. undecided: `needs` names the variant of which there is no run yet.
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
    known = {
        "max_abs_diff": float(difference.max()),
        "final_abs_diff": abs(final_loss(raw) - final_loss(reference.raw)),
    }
    computed, expected = raw["precision"]["compute"], reference.raw["precision"]["compute"]
    if not difference.any():
        return _verdict(reference, "identical", tolerance=0.0, **known)
    if computed != expected:
        narrower = _bits(computed) < _bits(expected)
        return _verdict(reference, "reduced precision" if narrower else "different", **known)
    if computed == "float64" and known["max_abs_diff"] <= EXACT_TOLERANCE:
        return _verdict(reference, "exact", tolerance=EXACT_TOLERANCE, **known)
    if twin is None:
        why = f"there is no finished run of {TWIN}"
        return _verdict(reference, UNDECIDED, reason=why, needs=TWIN, **known)
    tolerance = rounding_tolerance(reference.raw, twin.raw)
    known |= {"twin": twin.path.name, "tolerance": float(tolerance[-1])}
    beyond = np.flatnonzero(difference > tolerance)
    if not len(beyond):
        return _verdict(reference, "rounding", **known)
    known["first_step_beyond"] = int(beyond[0]) + 1
    if not _normalises_apart(raw):
        return _verdict(reference, "different", **known)
    if raw["variant"] != LOCAL and local is None:
        why = f"there is no finished run of {LOCAL} on as many ranks"
        return _verdict(reference, UNDECIDED, reason=why, needs=LOCAL, **known)
    as_ddp = raw["variant"] == LOCAL or (np.abs(curve - loss_curve(local.raw)) <= tolerance).all()
    return _verdict(reference, "local batch norm" if as_ddp else "different", **known)


def _normalises_apart(raw: dict[str, Any]) -> bool:
    """Whether parts of the global batch were normalised by their own statistics, as the model tells."""
    parts = raw["world_size"] * raw.get("replicas", 1)
    return parts > 1 and bool(_LOCAL_NORMS.intersection(raw.get("batch_norms") or []))


def _verdict(reference: Record | None, kind: str, **known: Any) -> dict[str, Any]:
    unknown = dict.fromkeys(
        ("max_abs_diff", "final_abs_diff", "tolerance", "first_step_beyond", "twin", "needs", "reason")
    )
    return {"reference": reference.path.name if reference else None, "class": kind, **unknown, **known}


def _bits(dtype: str) -> int:
    return 16 if dtype == "bfloat16" else int(dtype.removeprefix("float"))
