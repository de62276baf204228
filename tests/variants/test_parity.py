"""Whether the variants are the same training, by equality of their loss curves on the same global batches."""

import numpy as np
import pytest

from bench.derive import loss_curve
from tests.ranks import run_variant

# A learning rate at which the loss falls smoothly: where it jumps, training itself magnifies the last bits.
FIFTY_STEPS = ("--train-images", "800", "--global-batch-size", "16", "--lr", "0.01")
FLOAT64 = ("--dtype", "float64")
NO_NORM = ("--norm", "none")


def difference(variant: str, world_size: int, *flags: str) -> float:
    """The largest difference of the loss at any of 50 steps between the variant and single."""
    ours, reference = (
        loss_curve(run_variant(name, ranks, *FIFTY_STEPS, *flags))
        for name, ranks in ((variant, world_size), ("single", 1))
    )
    assert len(ours) == len(reference) == 50
    return float(np.abs(ours - reference).max())


@pytest.mark.parametrize("world_size", [2, 4])
def test_ddp_without_batch_norm_equals_single_in_float64(world_size):
    assert difference("ddp", world_size, *FLOAT64, *NO_NORM) <= 1e-12


def test_ddp_without_batch_norm_equals_single_in_float32_up_to_rounding():
    assert difference("ddp", 2, *NO_NORM) <= 1e-5


def test_ddp_with_local_batch_norm_is_another_training():
    assert difference("ddp", 2, *FLOAT64) > 1e-3


def test_ddp_syncbn_equals_single_with_batch_norm():
    assert difference("ddp_syncbn", 2, *FLOAT64) <= 1e-9


def test_ddp_on_one_rank_is_bit_identical_to_single():
    ours, reference = (run_variant(name, 1, *FIFTY_STEPS) for name in ("ddp", "single"))
    assert ours["ranks"][0]["loss"] == reference["ranks"][0]["loss"]
    assert ours["ranks"][0]["weights_sha256"] == reference["ranks"][0]["weights_sha256"]


def test_dp_passes_through_on_a_cpu_and_is_bit_identical():
    ours, reference = (run_variant(name, 1, *FIFTY_STEPS) for name in ("dp", "single"))
    assert ours["wrapper"] == "DataParallel"
    assert ours["replicas"] == 1
    assert ours["ranks"][0]["weights_sha256"] == reference["ranks"][0]["weights_sha256"]


@pytest.mark.parametrize("variant, world_size", [("single_amp", 1), ("ddp_amp", 2)])
def test_mixed_precision_computes_in_bfloat16_on_a_cpu_and_stays_near(variant, world_size):
    assert run_variant(variant, world_size, *FIFTY_STEPS, *NO_NORM)["precision"]["compute"] == "bfloat16"
    assert 0 < difference(variant, world_size, *NO_NORM) < 0.1


@pytest.mark.parametrize("variant", ["ddp", "ddp_amp", "ddp_syncbn"])
def test_replicas_end_with_identical_weights(variant):
    ranks = run_variant(variant, 2, *FIFTY_STEPS)["ranks"]
    assert ranks[0]["weights_sha256"] == ranks[1]["weights_sha256"]
    assert ranks[0]["loss"] != ranks[1]["loss"]
