from pathlib import Path
from typing import Any

import pytest

from bench import parity
from bench.flags import Config
from bench.provenance import code_digest
from bench.records import Record
from bench.runner import stored_config
from tests.bench.fakes import ENVIRONMENT, raw_record, reference

PRECISION = {"weights": "float32", "asked": "float32", "compute": "float32", "scaler": False}
STEPS = 40


def shifted(difference: float, world_size: int = 1, dtype: str = "float32", **changes: Any) -> dict[str, Any]:
    """The record of a run whose losses all lie `difference` above those of the reference."""
    losses = [loss + difference for loss in raw_record(1, STEPS)["ranks"][0]["loss"]]
    ranks = {rank: {"loss": losses} for rank in range(world_size)}
    precision = {**PRECISION, "compute": dtype}
    return raw_record(world_size, STEPS, rank_changes=ranks, precision=precision, **changes)


def verdict(raw: dict[str, Any], dtype: str = "float32", twin: float | None = 1e-6) -> dict[str, Any]:
    """Parity against a reference that computed in `dtype`, and a twin that lies `twin` off it."""
    reference = Record(Path("single-1.json"), shifted(0.0, dtype=dtype))
    other = None if twin is None else Record(Path("twin-1.json"), shifted(twin, dtype=dtype))
    return parity.parity(raw, reference, other)


@pytest.mark.parametrize(
    ("raw", "dtype", "kind"),
    [
        (shifted(0.0, 2), "float32", "identical"),
        (shifted(1e-12, 2, "float64"), "float64", "exact"),
        (shifted(2e-6, 2), "float32", "rounding"),
        (shifted(2e-6, 2, batch_norms=["BatchNorm2d"]), "float32", "rounding"),
        (shifted(1e-2, 2, batch_norms=["BatchNorm2d"], variant="ddp"), "float32", "local batch norm"),
        (shifted(1e-2, 1, batch_norms=["BatchNorm2d"]), "float32", "different"),
        (shifted(1e-2, 2, batch_norms=["SyncBatchNorm"]), "float32", "different"),
        (shifted(1e-2, 2, batch_norms=[]), "float32", "different"),
        (shifted(1e-2, 2, batch_norms=None), "float32", "different"),
        (shifted(1e-2, 2, "bfloat16"), "float32", "reduced precision"),
        (shifted(1e-7, 2, "float64"), "float32", "different"),
    ],
)
def test_classes(raw: dict[str, Any], dtype: str, kind: str) -> None:
    assert verdict(raw, dtype)["class"] == kind


def test_the_largest_difference_of_any_step_is_told_and_where_it_leaves_the_tolerance() -> None:
    raw = shifted(1e-7, 2, batch_norms=[])
    for part in raw["ranks"]:
        part["loss"] = [*part["loss"][:30], part["loss"][30] + 0.5, *part["loss"][31:]]
    found = verdict(raw)
    assert found["class"] == "different"
    assert found["max_abs_diff"] == pytest.approx(0.5, rel=1e-3)
    assert found["first_step_beyond"] == 31
    assert (found["reference"], found["twin"]) == ("single-1.json", "twin-1.json")


def test_without_a_twin_it_is_undecided_unless_facts_decide() -> None:
    assert parity.needs(verdict(shifted(1e-2, 2), twin=None)) == "single_reordered"
    assert parity.needs(verdict(shifted(0.0, 2), twin=None)) is None
    assert parity.needs(verdict(shifted(1e-2, 2, "bfloat16"), twin=None)) is None
    assert parity.needs(None) is None


def with_local_norm(difference: float) -> dict[str, Any]:
    return shifted(difference, 2, batch_norms=["BatchNorm2d"], variant="zero1")


@pytest.mark.parametrize(
    ("of_ddp", "kind"), [(1e-2, "local batch norm"), (1e-2 + 1e-6, "local batch norm"), (2e-2, "different")]
)
def test_local_batch_norm_explains_only_what_ddp_shows_too(of_ddp: float, kind: str) -> None:
    reference = Record(Path("single-1.json"), shifted(0.0))
    twin = Record(Path("twin-1.json"), shifted(1e-6))
    raw = with_local_norm(1e-2)
    assert parity.needs(parity.parity(raw, reference, twin)) == "ddp"
    local = Record(Path("ddp-1.json"), with_local_norm(of_ddp))
    assert parity.parity(raw, reference, twin, local)["class"] == kind


def test_data_parallel_over_several_gpus_normalises_apart_too() -> None:
    assert parity._normalises_apart(raw_record(1, replicas=2, batch_norms=["BatchNorm2d"]))
    assert not parity._normalises_apart(raw_record(1, replicas=1, batch_norms=["BatchNorm2d"]))


def test_the_tolerance_follows_the_twin_tenfold_and_ends_at_three_times_its_largest_distance() -> None:
    drift = [0.0] * 20 + [1e-3 * step / 20 for step in range(20)]
    twin = shifted(0.0)
    twin["ranks"][0]["loss"] = [a + b for a, b in zip(twin["ranks"][0]["loss"], drift, strict=True)]
    tolerance = parity.rounding_tolerance(shifted(0.0), twin)
    assert tolerance[12] == pytest.approx(10 * drift[22], rel=0.01)
    assert tolerance[-1] == pytest.approx(3 * max(drift), rel=0.01)


def test_the_tolerance_is_never_less_than_some_units_in_the_last_place() -> None:
    tolerance = parity.rounding_tolerance(shifted(0.0), shifted(0.0))
    assert (tolerance > 0).all()
    assert tolerance.max() < 1e-3


def test_other_numbers_of_steps_are_not_compared() -> None:
    found = parity.parity(raw_record(steps=8), Record(Path("r.json"), raw_record(1)))
    assert (found["class"], found["max_abs_diff"]) == ("not comparable", None)
    assert "8 steps, where single made 4" in found["reason"]


def test_without_a_reference_it_says_so() -> None:
    assert parity.parity(raw_record(), None)["class"] == "not comparable"


def find(
    records: list[Record], environment: dict = ENVIRONMENT, code: str | None = None, **flags: Any
) -> Any:
    config = stored_config(Config(**flags))
    return parity.find_reference(records, environment, config, code or code_digest())


def test_the_newest_fitting_reference_is_found(tmp_path: Path) -> None:
    old = reference(tmp_path, "old", started_at="2026-01-01T00:00:00+00:00")
    new = reference(tmp_path, "new", started_at="2026-01-02T00:00:00+00:00")
    assert find([new, old]) is new


def test_flags_that_change_nothing_in_single_do_not_matter(tmp_path: Path) -> None:
    record = reference(tmp_path)
    assert find([record], warmup_steps=7, timeout=9.0, amp_dtype="float16") is record


def test_nothing_else_may_differ(tmp_path: Path) -> None:
    record = reference(tmp_path)
    assert find([record], lr=0.5) is None
    assert find([record], code="other") is None
    assert find([record], environment={**ENVIRONMENT, "host": "fedcba98"}) is None
    assert find([record], environment={**ENVIRONMENT, "packages": {"torch": "9"}}) is None


def test_only_a_whole_and_good_run_of_single_serves(tmp_path: Path) -> None:
    failed, resumed, other = (reference(tmp_path, name) for name in ("failed", "resumed", "other"))
    failed.run["status"] = "failed"
    resumed.raw["epochs"] = []
    other.raw["variant"] = "own-single"
    assert find([failed, resumed, other]) is None
