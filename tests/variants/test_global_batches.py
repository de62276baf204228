"""Every world size puts the same images into every global batch: loss curves can be compared."""

import json
import os
from pathlib import Path

import pytest
import torch

from core import ImageSet
from tests.ranks import VARIANTS, run_as_main, run_ranks

FLAGS = ["--train-images", "211", "--epochs", "2", "--model", "mlp"]


def note_indices(path: str, flags: list[str], alone: bool, folder: str) -> None:
    """Run a variant and write down which images this process took for each batch of the training set."""
    batches: list[list[int]] = []
    real = ImageSet.__getitems__

    def noted(self, indices):
        if not isinstance(indices, torch.Tensor):  # a batch of the loader; evaluate takes tensors
            batches.append(list(indices))
        return real(self, indices)

    ImageSet.__getitems__ = noted
    rank = os.environ["RANK"]
    run_as_main(path, flags, alone)
    Path(folder, f"{rank}.json").write_text(json.dumps(batches))


def batches_of(name: str, world_size: int, batch: int, folder: Path) -> list[list[list[int]]]:
    """By rank, the batches of two epochs."""
    folder.mkdir()
    flags = [*FLAGS, "--global-batch-size", str(batch)]
    run_ranks(note_indices, world_size, str(VARIANTS / f"{name}.py"), flags, name == "single", str(folder))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world_size)]


# 211 images: a sampler that pads them for two ranks would make two steps of 106 where single makes one.
@pytest.mark.parametrize("world_size, batch", [(1, 40), (2, 40), (4, 40), (3, 42), (7, 42), (2, 106)])
def test_the_global_batches_of_ddp_are_those_of_single(tmp_path, world_size, batch):
    (single,) = batches_of("single", 1, batch, tmp_path / "single")
    ranks = batches_of("ddp", world_size, batch, tmp_path / "ddp")
    assert len(single) == 2 * (211 // batch)
    for step, images in enumerate(single):
        together = [index for rank in ranks for index in rank[step]]
        assert len(set(together)) == len(together) == batch
        assert set(together) == set(images)
    first_epoch, second_epoch = single[: len(single) // 2], single[len(single) // 2 :]
    assert first_epoch != second_epoch
