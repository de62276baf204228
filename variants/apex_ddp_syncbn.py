"""The recipe of old scripts in full: apex's synchronised batch norm, apex amp, then apex's DDP.

    torchrun --standalone --nproc-per-node 2 variants/apex_ddp_syncbn.py --opt-level O1

Parent: apex_ddp

The order matters. convert_syncbn_model first: it replaces modules, which initialize would have prepared in
vain. amp.initialize next: it casts the weights and patches forward, which a wrapper would hide from it. DDP
last: it registers hooks on the parameters it finds, which must be the final ones.
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
from core.apex import amp, apex_backend, initialize_options, parallel


def main(cfg: Config) -> None:
    local_rank = int(os.environ["LOCAL_RANK"])  # torchrun sets it, and what init_process_group reads
    device = pick_device(local_rank)  # cuda:local_rank, or cpu
    # nccl, or gloo; the default time-out would be 10 or 30 minutes
    dist.init_process_group(backend_for(device), timeout=timedelta(seconds=cfg.timeout))
    batch_size = cfg.global_batch_size // dist.get_world_size()

    torch.manual_seed(cfg.seed + dist.get_rank())  # dropout must differ between ranks
    model = build_model(cfg).to(device)
    model = parallel.convert_syncbn_model(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum)
    model, optimizer = amp.initialize(model, optimizer, **initialize_options(cfg, device))
    model = parallel.DistributedDataParallel(model, delay_allreduce=True)  # broadcasts the weights too

    train_set, test_set = load_data(cfg)
    sampler = DistributedSampler(train_set, seed=cfg.seed, drop_last=True)  # every world_size-th image
    loading = {"drop_last": True, "collate_fn": keep, "pin_memory": device.type == "cuda"}
    loader = DataLoader(train_set, batch_size, sampler=sampler, **loading)
    scheduler = build_scheduler(cfg, optimizer, steps_per_epoch=len(loader))

    checkpoint = Checkpoint(cfg, model, optimizer=optimizer, scheduler=scheduler, amp=amp)
    first_epoch = checkpoint.load()
    log = StepLog(cfg, device, checkpoint, len(loader), apex=apex_backend())
    for epoch in range(first_epoch, cfg.epochs):
        sampler.set_epoch(epoch)  # a new shuffle, the same on every rank
        model.train()
        for images, labels in loader:
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            scale = amp.state_dict()["loss_scaler0"]["loss_scale"]
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()  # not when a gradient overflowed: then amp skips it ...
            if amp.state_dict()["loss_scaler0"]["loss_scale"] >= scale:  # ... and has halved the scale
                scheduler.step()
            log.step(loss)
        accuracy = evaluate(model, test_set, device)
        checkpoint.save(epoch + 1)
        log.epoch(accuracy)
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
