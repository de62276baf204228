"""Hugging Face accelerate: `prepare` adapts model, optimizer, loader and scheduler to the launched ranks.

    torchrun --standalone --nproc-per-node 2 variants/accelerate_ddp.py

Parent: single
Differs: local batch norm sees other shares of each batch

Underneath it is DDP. `accelerate launch --cpu --num_processes 2` starts a single process without a word,
hence torchrun. split_batches keeps the global batch: else every rank takes whole batches of its own. A rank's
share of it is one piece, where ddp takes every world_size-th image; only local batch norm sees that.
"""

import os
from datetime import timedelta

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

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
    unavailable,
)

try:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, InitProcessGroupKwargs
except ImportError as error:
    unavailable(f"needs the package accelerate (pip install accelerate): {error}")


def main(cfg: Config) -> None:
    local_rank = int(os.environ["LOCAL_RANK"])  # torchrun sets it, and what Accelerator reads
    device = pick_device(local_rank)  # cuda:local_rank, or cpu
    group = InitProcessGroupKwargs(backend_for(device), timeout=timedelta(seconds=cfg.timeout))
    loading = DataLoaderConfiguration(split_batches=True, non_blocking=True)  # ranks share each batch
    accelerator = Accelerator(cpu=device.type == "cpu", dataloader_config=loading, kwargs_handlers=[group])

    torch.manual_seed(cfg.seed + accelerator.process_index)  # dropout must differ between ranks
    model = build_model(cfg).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum)

    train_set, test_set = load_data(cfg)
    sampler = RandomSampler(train_set, generator=torch.Generator())
    loading = {"drop_last": True, "collate_fn": keep, "pin_memory": device.type == "cuda"}
    loader = DataLoader(train_set, cfg.global_batch_size, sampler=sampler, **loading)
    scheduler = build_scheduler(cfg, optimizer, steps_per_epoch=len(loader))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    checkpoint = Checkpoint(cfg, model, optimizer=optimizer, scheduler=scheduler)
    first_epoch = checkpoint.load()
    log = StepLog(cfg, device, checkpoint, len(loader))
    for epoch in range(first_epoch, cfg.epochs):
        sampler.generator.manual_seed(cfg.seed + epoch)  # a new shuffle, the same in every variant
        model.train()
        for images, labels in loader:
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            log.step(loss)
        accuracy = evaluate(model, test_set, device)
        checkpoint.save(epoch + 1)
        log.epoch(accuracy)
    accelerator.end_training()


if __name__ == "__main__":
    run(main)
