"""The stand-in's DDP and SyncBatchNorm on two gloo processes: as one process on the whole batch."""

import copy
import os
import tempfile
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from core.apex_standin import amp, parallel
from core.apex_standin.errors import ApexError

WORLD_SIZE = 2
STEPS = 3


class Net(nn.Module):
    """Convolution, batch norm, linear. Takes (N, 1, 6, 6), gives (N, 3)."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(64, 3)

    def forward(self, images):
        return self.fc(self.norm(self.conv(images)).relu().flatten(1))


def data(dtype=torch.float64):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(8, 1, 6, 6, generator=generator, dtype=torch.float64).to(dtype), torch.arange(8) % 3


def train(model, images, labels, optimizer=None, use_amp=False):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        if use_amp:
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
        else:
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run(rank, check, file):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{file}",
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=timedelta(seconds=60),  # a check that hangs fails
    )
    try:
        check(rank)
    finally:
        dist.destroy_process_group()


def all_checks(rank):
    """Every check in the same two processes, as most of the time goes into starting them."""
    for check in (
        ddp_equals_one_process,
        ddp_options,
        ddp_copes_with_unused_parameters,
        buffers_stay_apart,
        accumulation,
        sync_batch_norm_on_uneven_batches,
        groups,
        amp_inside_ddp,
        an_overflow_on_one_rank_skips_on_all,
        masters_start_equal,
        reducer,
        mistakes,
    ):
        amp.reset()
        try:
            check(rank)
        except BaseException as error:
            raise AssertionError(f"{check.__name__} on rank {rank}") from error
        dist.barrier()


def test_two_processes():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (all_checks, os.path.join(folder, "store")), nprocs=WORLD_SIZE)


def share(rank):
    images, labels = data()
    return images[rank::WORLD_SIZE], labels[rank::WORLD_SIZE]


def close(left, right, tolerance=1e-9):
    torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


def ddp_equals_one_process(rank):
    expected = Net().double()
    train(expected, *data())
    for options in ({"delay_allreduce": True}, {}, {"message_size": 1}, {"message_size": 40}):
        model = parallel.convert_syncbn_model(Net(seed=rank).double())  # rank 0's weights win
        model = parallel.DistributedDataParallel(model, **options)
        train(model, *share(rank))
        state = {name.removeprefix("module."): value for name, value in model.state_dict().items()}
        assert all(name.startswith("module.") for name in model.state_dict())
        close(state, dict(expected.state_dict()))


def gradient(rank, **options):
    model = nn.Linear(3, 1, bias=False).double()
    nn.init.ones_(model.weight)
    model = parallel.DistributedDataParallel(model, **options)
    model(torch.full((1, 3), rank + 1.0, dtype=torch.float64)).sum().backward()
    return model.module.weight.grad[0, 0].item()


def ddp_options(rank):
    assert gradient(rank) == 1.5
    assert gradient(rank, gradient_average=False) == 3
    assert gradient(rank, gradient_predivide_factor=4.0) == 1.5
    assert gradient(rank, gradient_predivide_factor=2.0, gradient_average=False) == 1.5
    assert gradient(rank, num_allreduce_streams=2, retain_allreduce_buffers=True, prof=True) == 1.5

    model = Net().half()
    trigger = [model.norm.weight]
    model = parallel.DistributedDataParallel(
        model, allreduce_always_fp32=True, allreduce_trigger_params=trigger
    )
    assert [len(bucket) for bucket in model._buckets] == [4, 2]
    images, labels = data(torch.float16)
    nn.functional.cross_entropy(model(images).float(), labels).backward()
    assert model.module.fc.weight.grad.dtype == torch.float16


def ddp_copes_with_unused_parameters(rank):
    for options in ({"delay_allreduce": True}, {"message_size": 1}):
        layers = nn.ModuleDict({name: nn.Linear(1, 1, bias=False) for name in ("both", "one", "none")})
        model = parallel.DistributedDataParallel(layers, **options)
        for _ in range(2):
            model.zero_grad()
            model._begin()
            used = ["both", "one"] if rank == 0 else ["both"]
            sum(layers[name](torch.ones(1, 1)) for name in used).sum().backward()
            assert layers["both"].weight.grad.item() == 1
            assert layers["one"].weight.grad.item() == 0.5
            assert layers["none"].weight.grad is None


def buffers_stay_apart(rank):
    model = Net()
    model.norm.running_mean.fill_(rank)
    model = parallel.DistributedDataParallel(model)
    assert model.module.norm.running_mean[0] == rank


def accumulation(rank):
    model = parallel.DistributedDataParallel(nn.Linear(1, 1, bias=False))
    model.disable_allreduce()
    model(torch.full((1, 1), rank + 1.0)).sum().backward()
    assert model.module.weight.grad.item() == rank + 1
    model.enable_allreduce()
    model(torch.full((1, 1), rank + 1.0)).sum().backward()
    assert model.module.weight.grad.item() == 3


def sync_batch_norm_on_uneven_batches(rank):
    images = torch.randn(8, 3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 50
    whole = images.clone().requires_grad_()
    plain = nn.BatchNorm1d(3).double()
    weights = torch.arange(8.0, dtype=torch.float64).view(8, 1, 1)
    output = plain(whole)
    (output.square() * weights).sum().backward()

    mine = slice(0, 3) if rank == 0 else slice(3, 8)
    part = images[mine].clone().requires_grad_()
    sync = parallel.convert_syncbn_model(nn.BatchNorm1d(3).double())
    result = sync(part)
    (result.square() * weights[mine]).sum().backward()
    close(result, output[mine], 1e-11)
    close(part.grad, whole.grad[mine], 1e-10)
    close(sync.running_mean, plain.running_mean, 1e-12)
    close(sync.running_var, plain.running_var, 1e-12)
    total = sync.weight.grad.clone()
    dist.all_reduce(total)
    close(total, plain.weight.grad)


def groups(rank):
    assert parallel.create_syncbn_process_group(0) is None
    alone = parallel.create_syncbn_process_group(1)
    together = parallel.create_syncbn_process_group(2)
    images = torch.randn(4, 3, generator=torch.Generator().manual_seed(rank))
    plain = nn.BatchNorm1d(3)(images)
    close(parallel.SyncBatchNorm(3, process_group=alone)(images), plain, 1e-5)
    assert not torch.allclose(parallel.SyncBatchNorm(3, process_group=together)(images), plain)


def amp_inside_ddp(rank):
    for level in ("O0", "O1", "O2", "O3"):
        torch.manual_seed(0)
        model = parallel.convert_syncbn_model(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        model = parallel.DistributedDataParallel(model, delay_allreduce=level != "O2")
        images, labels = share(rank)
        losses = torch.tensor(train(model, images.float(), labels, optimizer, use_amp=True))
        dist.all_reduce(losses)
        images, labels = data(torch.float32)
        expected = torch.tensor(train(Net(), images, labels))
        close(losses / WORLD_SIZE, expected, 1e-5 if level == "O0" else 0.05)
        weights = torch.cat([param.detach().float().flatten() for param in amp.master_params(optimizer)])
        others = weights.clone()
        dist.broadcast(others, 0)
        assert torch.equal(weights, others)


def an_overflow_on_one_rank_skips_on_all(rank):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    model = parallel.DistributedDataParallel(model)
    before = model.module.fc.weight.detach().clone()
    images, labels = data(torch.float32)
    loss = nn.functional.cross_entropy(model(images), labels) * (float("inf") if rank == 1 else 1.0)
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    optimizer.step()
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 32768
    assert torch.equal(model.module.fc.weight, before)


def masters_start_equal(rank):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    if rank == 0:
        model.load_state_dict(Net(seed=5).state_dict())
    parallel.DistributedDataParallel(model)
    for param in amp.master_params(optimizer):
        mine, rank_0s = param.detach().clone(), param.detach().clone()
        dist.broadcast(rank_0s, 0)
        assert torch.equal(mine, rank_0s)


def reducer(rank):
    model = nn.Linear(2, 1)
    nn.init.constant_(model.weight, float(rank))
    averaging = parallel.Reducer(model)
    assert not model.weight.any()
    model(torch.full((1, 2), float(rank))).sum().backward()
    averaging.reduce()
    assert model.weight.grad[0, 0] == 0.5
    gradients = [torch.full((2,), float(rank)), torch.full((1,), float(rank), dtype=torch.float64)]
    parallel.Reducer(copy.copy(gradients)).reduce()
    assert gradients[0][0] == gradients[1][0] == 0.5


def raises(said, function, *args, **options):
    with pytest.raises(ApexError, match=said):
        function(*args, **options)


def mistakes(rank):
    ddp = parallel.DistributedDataParallel(Net())
    raises("parallel wrappers come after amp.initialize", amp.initialize, ddp, opt_level="O1", verbosity=0)
    native = nn.parallel.DistributedDataParallel(Net())
    raises("parallel wrappers come after amp.initialize", amp.initialize, native, opt_level="O1", verbosity=0)
    raises("convert the model first", parallel.convert_syncbn_model, ddp)
    raises("convert the model first", parallel.convert_syncbn_model, native)
    raises("shared_param", parallel.DistributedDataParallel, Net(), shared_param=True)
    raises(
        "does not go with delay_allreduce",
        parallel.DistributedDataParallel,
        Net(),
        delay_allreduce=True,
        allreduce_trigger_params=[],
    )
    raises("does not divide", parallel.create_syncbn_process_group, 3)
