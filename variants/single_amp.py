"""Mixed precision on one device: the forward pass in a 16-bit dtype, weights and optimizer in float32.

    python variants/single_amp.py

Parent: single
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

from core import (
    Checkpoint,
    Config,
    StepLog,
    build_model,
    build_scheduler,
    evaluate,
    keep,
    load_data,
    pick_amp_dtype,
    pick_device,
    run,
)


def main(cfg: Config) -> None:
    device = pick_device()  # cuda, or cpu

    torch.manual_seed(cfg.seed)
    model = build_model(cfg).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum)
    amp_dtype = pick_amp_dtype(cfg, device)
    # float16 gradients underflow to zero unless the loss is scaled up; bfloat16 has the range of float32.
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)

    train_set, test_set = load_data(cfg)
    sampler = RandomSampler(train_set, generator=torch.Generator())
    loading = {"drop_last": True, "collate_fn": keep, "pin_memory": device.type == "cuda"}
    loader = DataLoader(train_set, cfg.global_batch_size, sampler=sampler, **loading)
    scheduler = build_scheduler(cfg, optimizer, steps_per_epoch=len(loader))

    checkpoint = Checkpoint(cfg, model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
    first_epoch = checkpoint.load()
    log = StepLog(cfg, device, checkpoint, len(loader))
    for epoch in range(first_epoch, cfg.epochs):
        sampler.generator.manual_seed(cfg.seed + epoch)  # a new shuffle, the same in every variant
        model.train()
        for images, labels in loader:
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            with torch.autocast(device.type, amp_dtype):
                loss = criterion(model(images), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)  # sync point; when a gradient overflowed the step is skipped ...
            scale = scaler.get_scale()  # sync point, as the one below
            scaler.update()  # ... and the scale halved
            if scaler.get_scale() >= scale:
                scheduler.step()
            log.step(loss)
        accuracy = evaluate(model, test_set, device)
        checkpoint.save(epoch + 1)
        log.epoch(accuracy)


if __name__ == "__main__":
    run(main)
