"""DDP written out: broadcast the weights once, then average every gradient over the ranks after backward.

    torchrun --standalone --nproc-per-node 2 variants/ddp_by_hand.py

Parent: single

This is what DDP does at heart, in the open. DDP itself is faster with larger models: it packs the gradients
into buckets and sends each while backward still computes the next one. It also sends rank 0's batch-norm
statistics to all before each forward pass, which changes no step.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
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
    for tensor in model.state_dict().values():  # every rank drew weights of its own: all start from rank 0's
        dist.broadcast(tensor, src=0)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum)

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
            # Every rank has equally many images, so the mean of the ranks' gradients is the global batch's.
            for parameter in model.parameters():
                if parameter.grad is not None:  # as it is of a frozen one
                    dist.all_reduce(parameter.grad)  # the sum
                    parameter.grad /= dist.get_world_size()
            optimizer.step()
            scheduler.step()
            log.step(loss)
        accuracy = evaluate(model, test_set, device)
        checkpoint.save(epoch + 1)
        log.epoch(accuracy)
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
