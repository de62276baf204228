"""Test accuracy, counted exactly for every world size."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from .data import ImageSet
from .memory import note_training_peaks
from .ranks import grouped, rank, unwrap, world_size

IMAGES_PER_FORWARD = 1000


@dataclass(frozen=True)
class Accuracy:
    """`correct` of `total` test images over all ranks."""

    correct: int
    total: int

    def __float__(self) -> float:
        return self.correct / self.total


@torch.no_grad()
def evaluate(model: nn.Module, test_set: ImageSet, device: torch.device) -> Accuracy:
    """The accuracy of rank 0's model on the whole test set; every rank must call this.

    Each rank counts a share of its own and the counts are added up, so no image is seen twice and none is
    left out. A DistributedSampler would pad the shares to equal length, which makes the accuracy depend on
    the world size.
    """
    note_training_peaks(device)
    network = unwrap(model)  # DDP's own forward would broadcast buffers, and hang when shares are unequal
    if grouped():
        # With local batch norm each rank has running statistics of its own; a checkpoint holds rank 0's.
        for buffer in network.buffers():
            dist.broadcast(buffer, src=0)
    was_training = network.training
    network.eval()
    share = torch.arange(len(test_set))[rank() :: world_size()]
    # The same number of forwards on every rank, as a sharded model communicates in each.
    forwards = -(-len(test_set) // (world_size() * IMAGES_PER_FORWARD))
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for indices in share.tensor_split(forwards):
        images, labels = test_set.__getitems__(indices)
        predictions = network(images.to(device)).argmax(dim=1)
        correct += (predictions == labels.to(device)).sum()
    if grouped():
        dist.all_reduce(correct)
    network.train(was_training)
    return Accuracy(correct=int(correct), total=len(test_set))
