"""Post-local SGD: after some steps as DDP each rank trains alone, and all average their weights periodically.

    torchrun --standalone --nproc-per-node 2 variants/ddp_local_sgd.py

Parent: ddp
Differs: between averages each rank trains alone

It talks once in PERIOD steps rather than in each. Between two averages the ranks have different weights: it
is another training. torch's `post_localSGD_hook` would by default still average the gradients among the ranks
of one machine, which on a single machine is plain DDP.
"""

import os
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from core import (
    Checkpoint,
    Config,
    StepLog,
    backend_for,
    build_model,
    build_scheduler,
    evaluate,
    keep,
    load_data,
    pick_device,
    run,
)

START_STEP = 10  # until then gradients are averaged in every step
PERIOD = 4  # steps from one average of the weights to the next


def main(cfg: Config) -> None:
    local_rank = int(os.environ["LOCAL_RANK"])  # torchrun sets it, and what init_process_group reads
    device = pick_device(local_rank)  # cuda:local_rank, or cpu
    # nccl, or gloo; the default time-out would be 10 or 30 minutes
    dist.init_process_group(backend_for(device), timeout=timedelta(seconds=cfg.timeout))
    batch_size = cfg.global_batch_size // dist.get_world_size()

    torch.manual_seed(cfg.seed + dist.get_rank())  # dropout must differ between ranks
    model = build_model(cfg).to(device)
    model = DDP(model)  # broadcasts the weights of rank 0 to all
    averager = PeriodicModelAverager(PERIOD, warmup_steps=START_STEP)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum)

    train_set, test_set = load_data(cfg)
    sampler = DistributedSampler(train_set, seed=cfg.seed, drop_last=True)  # every world_size-th image
    loading = {"drop_last": True, "collate_fn": keep, "pin_memory": device.type == "cuda"}
    loader = DataLoader(train_set, batch_size, sampler=sampler, **loading)
    scheduler = build_scheduler(cfg, optimizer, steps_per_epoch=len(loader))

    checkpoint = Checkpoint(cfg, model, optimizer=optimizer, scheduler=scheduler)
    first_epoch = checkpoint.load()
    averager.step = first_epoch * len(loader)  # a resumed run counts on
    log = StepLog(cfg, device, checkpoint, len(loader))
    for epoch in range(first_epoch, cfg.epochs):
        sampler.set_epoch(epoch)  # a new shuffle, the same on every rank
        model.train()
        for images, labels in loader:
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            # no_sync sends nothing: no gradient after backward, and no batch norm's statistics before forward
            with model.no_sync() if averager.step >= START_STEP else nullcontext():
                loss = criterion(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            averager.average_parameters(model.parameters())  # does so every PERIOD steps
            scheduler.step()
            log.step(loss)
        average_parameters(model.parameters(), dist.group.WORLD)  # what is tested and stored is one model
        accuracy = evaluate(model, test_set, device)
        checkpoint.save(epoch + 1)
        log.epoch(accuracy)
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
