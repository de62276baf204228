"""DDP started by torch.multiprocessing.spawn: the script makes its own ranks, one per GPU, or two on a CPU.

    python variants/ddp_spawn.py

Parent: ddp
Ranks: itself

Set WORLD_SIZE for another number of ranks. torchrun is preferred today: it also restarts and logs ranks.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
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
    leaving_the_group,
    load_data,
    pick_device,
    run,
)


def main(cfg: Config) -> None:
    world_size = int(os.environ.get("WORLD_SIZE", torch.cuda.device_count() or 2))
    cfg.check(world_size)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # port 0: a free one
    # daemons end with this process; others would outlive a Ctrl-C that reaches only the parent
    mp.spawn(worker, args=(world_size, store.port, cfg), nprocs=world_size, daemon=True)


@leaving_the_group
def worker(local_rank: int, world_size: int, port: int, cfg: Config) -> None:
    os.environ["LOCAL_WORLD_SIZE"] = str(world_size)  # torchrun would have set it
    device = pick_device(local_rank)  # cuda:local_rank, or cpu
    # nccl, or gloo; the default time-out would be 10 or 30 minutes
    group = {"store": dist.TCPStore("127.0.0.1", port), "rank": local_rank, "world_size": world_size}
    dist.init_process_group(backend_for(device), timeout=timedelta(seconds=cfg.timeout), **group)
    batch_size = cfg.global_batch_size // dist.get_world_size()

    torch.manual_seed(cfg.seed + dist.get_rank())  # dropout must differ between ranks
    model = build_model(cfg).to(device)
    model = DDP(model)  # broadcasts the weights of rank 0 to all
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
            optimizer.step()
            scheduler.step()
            log.step(loss)
        accuracy = evaluate(model, test_set, device)
        checkpoint.save(epoch + 1)
        log.epoch(accuracy)
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
