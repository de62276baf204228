"""ZeRO stage 1: each rank keeps the optimizer state of its share of the parameters, and updates only these.

    torchrun --standalone --nproc-per-node 2 variants/zero1.py

Parent: ddp

The training is ddp's to the bit; the optimizer's memory per rank (`optimizer_bytes` in the record) falls
towards 1/world_size, and each step ends with a broadcast of every updated parameter. It pays with Adam, whose
state is twice the weights, on large models.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
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


def main(cfg: Config) -> None:
    local_rank = int(os.environ["LOCAL_RANK"])  # torchrun sets it, and what init_process_group reads
    device = pick_device(local_rank)  # cuda:local_rank, or cpu
    # nccl, or gloo; the default time-out would be 10 or 30 minutes
    dist.init_process_group(backend_for(device), timeout=timedelta(seconds=cfg.timeout))
    batch_size = cfg.global_batch_size // dist.get_world_size()

    torch.manual_seed(cfg.seed + dist.get_rank())  # dropout must differ between ranks
    model = build_model(cfg).to(device)
    model = DDP(model)  # broadcasts the weights of rank 0 to all
    criterion = nn.CrossEntropyLoss()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=cfg.lr, momentum=cfg.momentum)

    train_set, test_set = load_data(cfg)
    sampler = DistributedSampler(train_set, seed=cfg.seed, drop_last=True)  # every world_size-th image
    loading = {"drop_last": True, "collate_fn": keep, "pin_memory": device.type == "cuda"}
    loader = DataLoader(train_set, batch_size, sampler=sampler, **loading)
    scheduler = build_scheduler(cfg, optimizer, steps_per_epoch=len(loader))

    checkpoint = Checkpoint(cfg, model, optimizer=optimizer, scheduler=scheduler)
    first_epoch = checkpoint.load()
    log = StepLog(cfg, device, checkpoint, len(loader))
    for epoch in range(first_epoch, cfg.epochs):
        sampler.set_epoch(epoch)  # a new shuffle, the same on every rank
        model.train()
        for images, labels in loader:
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            log.step(loss)
        accuracy = evaluate(model, test_set, device)
        checkpoint.save(epoch + 1)
        log.epoch(accuracy)
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
