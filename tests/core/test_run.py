"""How a variant starts and ends when something is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from core.run import run
from tests.ranks import VARIANTS, RankError, run_ranks


@pytest.mark.parametrize("name", ["ddp", "ddp_amp", "ddp_syncbn"])
def test_without_a_launcher_the_right_command_is_said(name):
    environment = {key: value for key, value in os.environ.items() if key != "LOCAL_RANK"}
    done = subprocess.run(
        [sys.executable, VARIANTS / f"{name}.py"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"{name}.py: error: this variant is started once per rank by a launcher: "
        f"torchrun --standalone --nproc-per-node 2 variants/{name}.py"
    ]


def raise_on_rank_1(folder: str) -> None:
    def main(cfg):
        dist.init_process_group("gloo")
        destroyed = dist.destroy_process_group

        def counted():
            with open(Path(folder, f"destroyed{rank}"), "a") as file:
                file.write("x")
            destroyed()

        dist.destroy_process_group = counted
        rank = dist.get_rank()
        if rank == 1:
            raise RuntimeError("planted")
        dist.all_reduce(torch.zeros(1))

    sys.argv = ["x.py"]
    run(main)


def test_a_rank_that_raises_takes_its_group_down_and_the_others_see_it_at_once(tmp_path):
    with pytest.raises(RankError, match="planted") as error:
        run_ranks(raise_on_rank_1, 2, str(tmp_path))
    assert error.value.exit_codes == [1, 1]
    assert "Connection closed by peer" in error.value.output or "reset by peer" in error.value.output
    assert (tmp_path / "destroyed0").read_text() == (tmp_path / "destroyed1").read_text() == "x"


def test_a_key_error_of_the_variants_own_is_not_taken_for_a_missing_launcher(monkeypatch):
    def main(cfg):
        raise KeyError("something else")

    monkeypatch.setattr(sys, "argv", ["x.py"])
    with pytest.raises(KeyError, match="something else"):
        run(main)
