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


def verdict(
    difference: float, dtype: str = "float32", reference_dtype: str = "float32", **changes: Any
) -> dict:
    """Parity of two ranks whose losses are all `difference` above those of the reference."""
    losses = [loss + difference for loss in raw_record()["ranks"][0]["loss"]]
    raw = raw_record(
        rank_changes={0: {"loss": losses}, 1: {"loss": losses}},
        precision={**PRECISION, "compute": dtype},
        **changes,
    )
    wanted = raw_record(1, precision={**PRECISION, "compute": reference_dtype})
    return parity.parity(raw, Record(Path("single-1.json"), wanted))


@pytest.mark.parametrize(
    ("difference", "dtypes", "norms", "kind"),
    [
        (0.0, ("float32", "float32"), [], "identical"),
        (1e-12, ("float64", "float64"), [], "exact"),
        (1e-7, ("float32", "float32"), [], "rounding"),
        (1e-7, ("float32", "float32"), ["BatchNorm2d"], "rounding"),
        (1e-2, ("float32", "float32"), ["BatchNorm2d"], "local batch norm"),
        (1e-2, ("float32", "float32"), ["SyncBatchNorm"], "different"),
        (1e-2, ("float32", "float32"), [], "different"),
        (1e-2, ("float32", "float32"), None, "different"),
        (1e-2, ("bfloat16", "float32"), ["BatchNorm2d"], "reduced precision"),
        (1e-7, ("float64", "float32"), [], "different"),
        (1e-8, ("float64", "float64"), [], "different"),
    ],
)
def test_classes(difference: float, dtypes: tuple[str, str], norms: list[str] | None, kind: str) -> None:
    assert verdict(difference, *dtypes, batch_norms=norms)["class"] == kind


def test_the_largest_difference_of_any_step_is_told() -> None:
    found = verdict(1e-2, batch_norms=[])
    assert found["max_abs_diff"] == pytest.approx(1e-2)
    assert found["final_abs_diff"] == pytest.approx(1e-2)
    assert found["reference"] == "single-1.json"


def test_a_model_that_one_rank_normalises_is_no_local_batch_norm() -> None:
    losses = [9.0] * 4
    raw = raw_record(1, rank_changes={0: {"loss": losses}})
    assert parity.parity(raw, Record(Path("r.json"), raw_record(1)))["class"] == "different"


def test_other_numbers_of_steps_are_not_compared() -> None:
    found = parity.parity(raw_record(steps=8), Record(Path("r.json"), raw_record(1)))
    assert (found["class"], found["max_abs_diff"]) == ("not comparable", None)
    assert "8 steps, where single made 4" in found["reason"]


def test_without_a_reference_it_says_so() -> None:
    assert parity.parity(raw_record(), None)["class"] == "not comparable"


def test_the_tolerance_grows_with_the_steps_and_the_epsilon() -> None:
    assert parity.rounding_tolerance(10, "float32") == parity.rounding_tolerance(50, "float32") == 1e-5
    assert parity.rounding_tolerance(500, "float32") == pytest.approx(1e-4)
    assert parity.rounding_tolerance(50, "bfloat16") > 0.5
    assert parity.rounding_tolerance(50, "float64") < 1e-12


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
