"""Checkpoints of the further methods: one form for all, resumed to the bit, and read by any other variant."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bench.derive import loss_curve
from core import ConvNet
from tests.networks import Small
from tests.ranks import VARIANTS, RankError, run_ranks, run_script, run_variant
from tests.variants.test_resume import stop_after_first_epoch

# 16 steps in an epoch: local SGD and PowerSGD have begun with their technique when the first one ends.
TWO_EPOCHS = ("--model", "tests.networks:Small", "--train-images", "256", "--global-batch-size", "16")
TWO_EPOCHS += ("--epochs", "2")
FLOAT64 = ("--dtype", "float64")

ONE_DEVICE = ["single_channels_last"]
LAUNCHED = ["ddp_by_hand", "ddp_accum", "ddp_compress", "ddp_powersgd", "ddp_local_sgd", "zero1", "fsdp"]
LAUNCHED += ["fsdp_amp", "accelerate_ddp"]


def ranks_of(name: str) -> int:
    return 1 if name.startswith("single") else 2


def stop_after_one_epoch(name: str, folder: Path, *flags: str) -> dict:
    """The checkpoint of a run that ended after its first epoch."""
    world_size = ranks_of(name)
    flags = [*flags, "--checkpoint-dir", str(folder)]
    with pytest.raises(RankError) as stopped:
        path = str(VARIANTS / f"{name}.py")
        run_ranks(stop_after_first_epoch, world_size, path, flags, world_size == 1)
    assert stopped.value.exit_codes == [9] * world_size
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def resume(name: str, folder: Path, *flags: str) -> dict:
    alone = ranks_of(name) == 1
    path = VARIANTS / f"{name}.py"
    return run_script(path, ranks_of(name), *flags, "--checkpoint-dir", str(folder), alone=alone)


@pytest.mark.parametrize("name", [*ONE_DEVICE, *LAUNCHED])
def test_the_file_has_the_tensors_of_a_bare_network(name, tmp_path):
    stored = stop_after_one_epoch(name, tmp_path, "--train-images", "32", "--global-batch-size", "16")
    network = ConvNet()
    network.load_state_dict(stored["model"])  # strict: the same 16 names
    assert sum(stored["model"][name].numel() for name, _ in network.named_parameters()) == 29_034
    assert all(type(tensor) is torch.Tensor for tensor in stored["model"].values())
    optimizer = stored["optimizer"].get("by_rank", [stored["optimizer"]])[0]
    momenta = [state["momentum_buffer"].shape for state in optimizer["state"].values()]
    assert momenta == [parameter.shape for parameter in network.parameters()]


def check_resuming(name: str, folder: Path, *flags: str) -> None:
    stored = stop_after_one_epoch(name, folder, *TWO_EPOCHS, *flags)
    assert stored["model"].keys() == Small().state_dict().keys()
    resumed = resume(name, folder, *TWO_EPOCHS, *flags)
    whole = run_variant(name, ranks_of(name), *TWO_EPOCHS, *flags)
    for ours, expected in zip(resumed["ranks"], whole["ranks"], strict=True):
        assert ours["loss"] == expected["loss"][16:]
        assert ours["weights_sha256"] == expected["weights_sha256"]


@pytest.mark.parametrize("name", [*ONE_DEVICE, *(name for name in LAUNCHED if name != "ddp_powersgd")])
def test_resuming_equals_never_stopping(name, tmp_path):
    check_resuming(name, tmp_path)


# With the dtypes of the runs in test_methods.py, whose compiled code is then in the cache.
@pytest.mark.slow
@pytest.mark.parametrize("name, flags", [("single_compile", ()), ("ddp_compile", FLOAT64)])
def test_resuming_compiled_equals_never_stopping(name, flags, tmp_path):
    check_resuming(name, tmp_path, *flags)


def test_powersgd_goes_on_with_whole_gradients_as_its_docstring_says(tmp_path):
    stop_after_one_epoch("ddp_powersgd", tmp_path, *TWO_EPOCHS)
    resumed = resume("ddp_powersgd", tmp_path, *TWO_EPOCHS)
    whole = run_variant("ddp_powersgd", 2, *TWO_EPOCHS)
    difference = np.abs(loss_curve(resumed) - loss_curve(whole)[16:])
    assert difference[0] == 0 < difference[1:].min()
    assert difference.max() < 0.05
    assert len({rank["weights_sha256"] for rank in resumed["ranks"]}) == 1


def test_local_sgd_keeps_the_momentum_of_each_rank(tmp_path):
    stored = stop_after_one_epoch("ddp_local_sgd", tmp_path, *TWO_EPOCHS)
    first, second = (state["state"][0]["momentum_buffer"] for state in stored["optimizer"]["by_rank"])
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    "before, after",
    [
        ("single", "fsdp"),
        ("fsdp", "zero1"),
        ("zero1", "single"),
        ("ddp", "accelerate_ddp"),
        ("accelerate_ddp", "ddp_by_hand"),
    ],
)
def test_any_variant_goes_on_with_the_checkpoint_of_another(before, after, tmp_path):
    stop_after_one_epoch(before, tmp_path, *TWO_EPOCHS, *FLOAT64)
    resumed = resume(after, tmp_path, *TWO_EPOCHS, *FLOAT64)
    whole = run_variant("single", 1, *TWO_EPOCHS, *FLOAT64)
    assert loss_curve(resumed) == pytest.approx(loss_curve(whole)[16:], abs=1e-12)


def test_the_replicas_of_ddp_stay_equal_after_a_checkpoint_of_local_sgd(tmp_path):
    stop_after_one_epoch("ddp_local_sgd", tmp_path, *TWO_EPOCHS)
    ranks = resume("ddp", tmp_path, *TWO_EPOCHS)["ranks"]
    assert ranks[0]["weights_sha256"] == ranks[1]["weights_sha256"]
