"""The apex variants, on the stand-in: the same training where it must be, and a record that says what ran."""

import numpy as np
import pytest

from bench.derive import loss_curve
from tests.ranks import VARIANTS, RankError, run_script, run_variant

TWENTY_STEPS = ("--model", "tests.networks:Small", "--train-images", "320", "--global-batch-size", "16")
WITH_BATCH_NORM = ("--train-images", "160", "--global-batch-size", "16")


def largest_difference(ours: dict, reference: dict) -> float:
    return float(np.abs(loss_curve(ours) - loss_curve(reference)).max())


def test_o0_is_single_to_the_bit():
    ours, single = (
        run_variant("apex_amp", 1, *TWENTY_STEPS, "--opt-level", "O0"),
        run_variant("single", 1, *TWENTY_STEPS),
    )
    assert ours["ranks"][0]["loss"] == single["ranks"][0]["loss"]


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_the_other_levels_compute_in_half_and_stay_near(level):
    ours = run_variant("apex_amp", 1, *TWENTY_STEPS, "--opt-level", level)
    assert ours["precision"]["compute"] == ours["precision"]["asked"] == "bfloat16"
    assert 0 < largest_difference(ours, run_variant("single", 1, *TWENTY_STEPS)) < 0.05


def test_o1_trains_as_torch_amp_does():
    apex, native = run_variant("apex_amp", 1, *TWENTY_STEPS), run_variant("single_amp", 1, *TWENTY_STEPS)
    assert largest_difference(apex, native) < 0.02


def test_the_record_says_what_ran():
    apex = run_variant("apex_amp", 1, *TWENTY_STEPS)["apex"]
    assert apex["name"] == "stand-in" or apex["name"].startswith("apex ")
    assert apex["reason"]


@pytest.mark.parametrize("world_size", [1, 2])
def test_apex_ddp_equals_single_in_float64(world_size):
    ours = run_variant("apex_ddp", world_size, *TWENTY_STEPS, "--dtype", "float64")
    assert largest_difference(ours, run_variant("single", 1, *TWENTY_STEPS, "--dtype", "float64")) <= 1e-12
    assert len({part["weights_sha256"] for part in ours["ranks"]}) == 1


def test_the_full_recipe_equals_single_with_batch_norm_at_o0():
    ours = run_variant("apex_ddp_syncbn", 2, *WITH_BATCH_NORM, "--opt-level", "O0")
    assert largest_difference(ours, run_variant("single", 1, *WITH_BATCH_NORM)) < 1e-4
    assert len({part["weights_sha256"] for part in ours["ranks"]}) == 1


def test_float64_is_refused_where_apex_would_cast_it_away():
    with pytest.raises(RankError, match="apex amp casts to float32") as error:
        run_script(
            VARIANTS / "apex_amp.py", 1, *TWENTY_STEPS, "--dtype", "float64", "--opt-level", "O0", alone=True
        )
    assert error.value.exit_codes == [2]
