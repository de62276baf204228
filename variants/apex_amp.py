"""apex amp on one device: one call decides by opt level what is computed in 16 bits, another scales the loss.

    python variants/apex_amp.py --opt-level O1

Parent: single

O0 is float32. O1 casts function by function. O2 keeps the weights in 16 bits, with batch norm and a master
copy of the weights in float32. O3 is 16 bits throughout. It is the letter O. NVIDIA removed amp from apex in
2025, so unless an old apex and CUDA are here, a stand-in of ours with the same interface runs (core/apex.py);
the record says which. New code takes torch.amp: compare single_amp.
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
from core.apex import amp, apex_backend, initialize_options


def main(cfg: Config) -> None:
    device = pick_device()  # cuda, or cpu

    torch.manual_seed(cfg.seed)
    model = build_model(cfg).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum)
    model, optimizer = amp.initialize(model, optimizer, **initialize_options(cfg, device))

    train_set, test_set = load_data(cfg)
    sampler = RandomSampler(train_set, generator=torch.Generator())
    loading = {"drop_last": True, "collate_fn": keep, "pin_memory": device.type == "cuda"}
    loader = DataLoader(train_set, cfg.global_batch_size, sampler=sampler, **loading)
    scheduler = build_scheduler(cfg, optimizer, steps_per_epoch=len(loader))

    checkpoint = Checkpoint(cfg, model, optimizer=optimizer, scheduler=scheduler, amp=amp)
    first_epoch = checkpoint.load()
    log = StepLog(cfg, device, checkpoint, len(loader), apex=apex_backend())
    for epoch in range(first_epoch, cfg.epochs):
        sampler.generator.manual_seed(cfg.seed + epoch)  # a new shuffle, the same in every variant
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


if __name__ == "__main__":
    run(main)
