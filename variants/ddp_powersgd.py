"""DDP that sends low-rank approximations of its gradients: the PowerSGD communication hook.

    torchrun --standalone --nproc-per-node 2 variants/ddp_powersgd.py

Parent: ddp
Differs: gradients are sent at low rank

Each gradient, as a matrix, becomes the product of a tall and a wide one, and only these are sent. What is
lost is added to the gradient of the next step, yet it is another training. It pays where matrices are large
and the network is slow.

DDP lays its buckets out anew after the first step, and what the hook remembers follows that layout. So it is
not in the checkpoint: a resumed run sends full gradients first, as a fresh one does. On CPUs the hook runs
in threads of gloo's, which know OMP_NUM_THREADS alone: where that is not the number of cores per rank, the
replicas may differ in their last bits.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
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

MATRIX_RANK = 2  # of the approximation: higher is nearer to the gradient, and more to send
START_STEP = 10  # until then the gradients are sent in full, as early steps take errors worst


def main(cfg: Config) -> None:
    local_rank = int(os.environ["LOCAL_RANK"])  # torchrun sets it, and what init_process_group reads
    device = pick_device(local_rank)  # cuda:local_rank, or cpu
    # nccl, or gloo; the default time-out would be 10 or 30 minutes
    dist.init_process_group(backend_for(device), timeout=timedelta(seconds=cfg.timeout))
    batch_size = cfg.global_batch_size // dist.get_world_size()

    torch.manual_seed(cfg.seed + dist.get_rank())  # dropout must differ between ranks
    model = build_model(cfg).to(device)
    model = DDP(model)  # broadcasts the weights of rank 0 to all
    # the epsilon: a gradient that is all zeros would be divided by zero
    state = PowerSGDState(None, MATRIX_RANK, START_STEP, orthogonalization_epsilon=1e-8)
    model.register_comm_hook(state, powerSGD_hook)  # in place of the all-reduce
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
