"""nn.DataParallel: one process feeds all GPUs, splitting each batch over copies of the model.

    python variants/dp.py

Parent: single

The copies are made anew and the outputs gathered on the first GPU in every step, by threads of one
interpreter: PyTorch itself advises DDP instead. Without GPUs, or with one, it passes everything through.
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
    pick_device,
    run,
)


def main(cfg: Config) -> None:
    device = pick_device()  # cuda, or cpu

    torch.manual_seed(cfg.seed)
    model = build_model(cfg).to(device)
    model = nn.DataParallel(model)  # over all visible GPUs
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum)

    train_set, test_set = load_data(cfg)
    sampler = RandomSampler(train_set, generator=torch.Generator())
    loading = {"drop_last": True, "collate_fn": keep, "pin_memory": device.type == "cuda"}
    loader = DataLoader(train_set, cfg.global_batch_size, sampler=sampler, **loading)
    scheduler = build_scheduler(cfg, optimizer, steps_per_epoch=len(loader))

    checkpoint = Checkpoint(cfg, model, optimizer=optimizer, scheduler=scheduler)
    first_epoch = checkpoint.load()
    log = StepLog(cfg, device, checkpoint, len(loader))
    for epoch in range(first_epoch, cfg.epochs):
        sampler.generator.manual_seed(cfg.seed + epoch)  # a new shuffle, the same in every variant
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


if __name__ == "__main__":
    run(main)
