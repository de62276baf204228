"""A run that stops and goes on ends with the weights of one that never stopped, bit for bit."""

from pathlib import Path

import pytest

from core import Checkpoint
from tests.ranks import VARIANTS, RankError, run_as_main, run_ranks, run_script, run_variant

THREE_EPOCHS = ("--train-images", "96", "--global-batch-size", "32", "--epochs", "3")


def stop_after_first_epoch(path: str, flags: list[str], alone: bool) -> None:
    """Run a variant that is killed on all ranks once its first checkpoint is written."""
    real = Checkpoint.save

    def save_and_stop(self, epochs_done):
        real(self, epochs_done)
        raise SystemExit(9)

    Checkpoint.save = save_and_stop
    run_as_main(path, flags, alone)


@pytest.mark.parametrize(
    "name",
    ["single", "single_amp", "dp", "apex_amp", "ddp", "ddp_amp", "ddp_syncbn", "apex_ddp", "apex_ddp_syncbn"],
)
def test_resuming_equals_never_stopping(name, tmp_path):
    world_size = 2 if "ddp" in name else 1
    path, alone = VARIANTS / f"{name}.py", world_size == 1
    flags = [*THREE_EPOCHS, "--checkpoint-dir", str(tmp_path)]
    whole = run_variant(name, world_size, *THREE_EPOCHS)
    with pytest.raises(RankError) as stopped:
        run_ranks(stop_after_first_epoch, world_size, str(path), flags, alone)
    assert stopped.value.exit_codes == [9] * world_size
    resumed = run_script(path, world_size, *flags, alone=alone)
    assert (resumed["steps"], whole["steps"]) == (6, 9)
    for ours, expected in zip(resumed["ranks"], whole["ranks"], strict=True):
        assert ours["weights_sha256"] == expected["weights_sha256"]
        assert ours["loss"] == expected["loss"][3:]


def test_float16_goes_on_with_its_loss_scale(tmp_path):
    path = VARIANTS / "single_amp.py"
    flags = ["--train-images", "64", "--global-batch-size", "32", "--amp-dtype", "float16", "--model", "mlp"]
    flags += ["--epochs", "2", "--checkpoint-dir", str(tmp_path)]
    with pytest.raises(RankError):
        run_ranks(stop_after_first_epoch, 1, str(path), flags, True)
    halve_the_scale(tmp_path / "checkpoint.pt")
    assert run_script(path, 1, *flags, alone=True)["precision"]["final_scale"] == 2.0**15


def halve_the_scale(path: Path) -> None:
    """Give the stored scaler another scale than the 65536 a fresh one starts with."""
    import torch

    state = torch.load(path, weights_only=True)
    assert state["scaler"]["scale"] == 2.0**16
    state["scaler"]["scale"] = 2.0**15
    torch.save(state, path)


def test_a_checkpoint_of_ddp_goes_on_as_single(tmp_path):
    flags = [*THREE_EPOCHS, "--checkpoint-dir", str(tmp_path)]
    with pytest.raises(RankError):
        run_ranks(stop_after_first_epoch, 2, str(VARIANTS / "ddp.py"), flags, False)
    assert run_script(VARIANTS / "single.py", 1, *flags, alone=True)["steps"] == 6
