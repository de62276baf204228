"""The amp of the stand-in, in one process."""

import copy
import gc
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from core.apex_standin import amp, parallel
from core.apex_standin.casts import AmpTensor
from core.apex_standin.errors import ApexError
from core.apex_standin.scaler import LossScaler


@pytest.fixture(autouse=True)
def fresh_amp():
    amp.reset()
    yield
    amp.reset()


class Small(nn.Module):
    """A convolution, a batch norm and a linear layer. Takes (N, 1, 6, 6), gives (N, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(64, 3)

    def forward(self, images):
        return self.fc(self.norm(self.conv(images)).relu().flatten(1))


IMAGES = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(8) % 3


def prepared(opt_level="O2", seed=0, lr=0.1, **overrides):
    torch.manual_seed(seed)
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return amp.initialize(model, optimizer, opt_level=opt_level, verbosity=0, **overrides)


def backward(model, optimizer, images=IMAGES, labels=LABELS, factor=1.0, **options):
    loss = F.cross_entropy(model(images).float(), labels) * factor
    with amp.scale_loss(loss, optimizer, **options) as scaled:
        scaled.backward()
    return loss.item()


def train(model, optimizer, steps=5):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(backward(model, optimizer))
        optimizer.step()
    return losses


def values(model):
    return [param.detach().clone() for param in model.parameters()]


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


# --- opt levels and overrides


@pytest.mark.parametrize(
    ("level", "weight", "norm", "output", "scale"),
    [
        ("O0", torch.float32, torch.float32, torch.float32, 1.0),
        ("O1", torch.float32, torch.float32, torch.float16, 65536.0),
        ("O2", torch.float16, torch.float32, torch.float32, 65536.0),
        ("O3", torch.float16, torch.float16, torch.float32, 1.0),
    ],
)
def test_levels(level, weight, norm, output, scale):
    model, optimizer = prepared(level, half_dtype=torch.float16)
    assert model.conv.weight.dtype == model.fc.bias.dtype == weight
    assert model.norm.weight.dtype == model.norm.running_var.dtype == norm
    assert model(IMAGES).dtype == output
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": scale, "unskipped": 0}}
    losses = train(model, optimizer, 10)
    assert losses[-1] < losses[0]
    master = torch.float16 if level == "O3" else torch.float32
    assert {param.dtype for param in amp.master_params(optimizer)} == {master}


def test_half_is_bfloat16_on_cpus_by_default():
    model, _ = prepared("O2")
    assert model.conv.weight.dtype == torch.bfloat16
    model, _ = prepared("O1")
    assert model(IMAGES).dtype == torch.bfloat16
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 65536.0


@pytest.mark.parametrize("keep", [False, "False"])
def test_batch_norm_in_half(keep):
    model, optimizer = prepared("O2", keep_batchnorm_fp32=keep)
    assert model.norm.weight.dtype == model.norm.running_mean.dtype == torch.bfloat16
    assert {param.dtype for param in amp.master_params(optimizer)} == {torch.float32}
    train(model, optimizer)


@pytest.mark.parametrize("keep", [True, "True"])
def test_o3_with_batch_norm_in_float32(keep):
    model, _ = prepared("O3", keep_batchnorm_fp32=keep)
    assert model.norm.weight.dtype == torch.float32


def test_a_batch_norm_without_weights_is_cast_as_in_apex():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=False))
    model = amp.initialize(model, opt_level="O2", verbosity=0)
    assert model[1].running_mean.dtype == torch.bfloat16


def test_o2_without_masters_updates_the_half_weights():
    model, optimizer = prepared("O2", master_weights=False)
    assert next(amp.master_params(optimizer)) is model.conv.weight
    before = values(model)
    train(model, optimizer, 1)
    assert not same(before, values(model))


def test_o3_with_masters():
    model, optimizer = prepared("O3", master_weights=True)
    assert {param.dtype for param in amp.master_params(optimizer)} == {torch.float32}
    train(model, optimizer)
    assert torch.equal(next(amp.master_params(optimizer)).bfloat16(), model.conv.weight)


@pytest.mark.parametrize("loss_scale", [128.0, 128, "128.0"])
def test_a_fixed_scale_counts_steps_and_never_moves(loss_scale):
    model, optimizer = prepared("O2", loss_scale=loss_scale)
    train(model, optimizer, 3)
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 128.0, "unskipped": 3}}


def test_loss_scale_leaves_the_gradients_as_they_are():
    gradients = []
    for loss_scale in (1.0, 1024.0, "dynamic"):
        model, optimizer = prepared("O0", loss_scale=loss_scale)
        backward(model, optimizer)
        gradients.append(model.fc.weight.grad)
    torch.testing.assert_close(gradients[0], gradients[1])
    torch.testing.assert_close(gradients[0], gradients[2])


def test_output_dtype_is_free():
    model, _ = prepared("O1", cast_model_outputs=torch.float32)
    assert type(model(IMAGES)) is torch.Tensor
    assert model(IMAGES).dtype == torch.float32
    model, _ = prepared("O2", cast_model_outputs=torch.float64)
    assert model(IMAGES).dtype == torch.float64


def test_o1_with_patching_off_trains_in_float32():
    model, _ = prepared("O1", patch_torch_functions=False)
    assert model(IMAGES).dtype == torch.float32


def test_not_enabled_changes_nothing():
    model, optimizer = prepared("O2", enabled=False)
    assert model.conv.weight.dtype == torch.float32
    loss = model(IMAGES).sum()
    with amp.scale_loss(loss, optimizer) as scaled:
        assert scaled is loss
    assert amp.state_dict() == {}
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 2.0, "unskipped": 0}})


def test_what_comes_back_has_the_shape_that_went_in():
    def model():
        return nn.Linear(2, 2)

    def sgd(*models):
        return torch.optim.SGD([param for model in models for param in model.parameters()], lr=0.1)

    first, second = model(), model()
    assert amp.initialize(first, verbosity=0) is first
    assert amp.initialize([second], verbosity=0) == [second]
    first, second = model(), model()
    optimizer = sgd(first)
    assert amp.initialize([first, second], optimizer, verbosity=0) == ([first, second], optimizer)
    optimizer = sgd(second)
    assert amp.initialize(second, [optimizer], verbosity=0) == (second, [optimizer])


def test_containers_go_in_and_come_out():
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, batch, names=()):
            assert batch["x"][0].dtype == torch.bfloat16
            assert batch["index"].dtype == torch.int64
            return {"y": [self.fc(batch["x"][0])], "names": names}

    model = amp.initialize(Pair(), opt_level="O2", verbosity=0)
    output = model({"x": (torch.ones(1, 2),), "index": torch.tensor([1])}, names=["a"])
    assert output["y"][0].dtype == torch.float32
    assert output["names"] == ["a"]


# --- mistakes


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"opt_level": "01"}, "letter O, not the digit zero"),
        ({"opt_level": "O4"}, "unknown opt_level 'O4'"),
        ({"opt_level": 1}, "unknown opt_level 1"),
        ({"loss_scale": "dynamical"}, "loss_scale takes"),
        ({"loss_scale": 0}, "loss_scale takes"),
        ({"loss_scale": "nan"}, "loss_scale takes"),
        ({"keep_batchnorm_fp32": "yes"}, "keep_batchnorm_fp32 takes"),
        ({"opt_level": "O1", "keep_batchnorm_fp32": True}, "does not go with opt_level='O1'"),
        ({"opt_level": "O1", "master_weights": True}, "does not go with opt_level='O1'"),
        ({"opt_level": "O1", "cast_model_type": torch.float16}, "does not go with opt_level='O1'"),
        ({"opt_level": "O2", "patch_torch_functions": True}, "choose that level instead"),
    ],
)
def test_options_that_do_not_fit(overrides, said):
    with pytest.raises(ApexError, match=said) as caught:
        prepared(**{"opt_level": "O2"} | overrides)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, ValueError)


def test_a_refused_initialize_leaves_the_model_alone():
    model = Small()
    with pytest.raises(ApexError):
        amp.initialize(model, opt_level="O2", loss_scale="x", verbosity=0)
    assert model.conv.weight.dtype == torch.float32
    with pytest.raises(ApexError, match=r"comes after amp.initialize"):
        amp.state_dict()


def test_a_wrapped_model_is_refused():
    with pytest.raises(ApexError, match=r"DataParallel; parallel wrappers come after amp.initialize"):
        amp.initialize(nn.DataParallel(Small()), opt_level="O2", verbosity=0)


def test_data_parallel_replicas_are_refused():
    model, _ = prepared("O1")
    with pytest.raises(ApexError, match="one process per device"):
        model._replicate_for_data_parallel()


def test_a_half_model_is_refused():
    with pytest.raises(ApexError, match=r"conv.weight is torch.float16"):
        amp.initialize(Small().half(), opt_level="O2", verbosity=0)


def test_other_objects_are_refused():
    with pytest.raises(ApexError, match="takes a model"):
        amp.initialize("model", verbosity=0)
    with pytest.raises(ApexError, match="takes an optimizer"):
        amp.initialize(Small(), "sgd", verbosity=0)


def test_an_optimizer_goes_through_once():
    _, optimizer = prepared()
    with pytest.raises(ApexError, match="already"):
        amp.initialize(Small(), optimizer, verbosity=0)


def test_order_of_calls():
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ApexError, match=r"comes after model, optimizer = amp.initialize"):
        backward(model, optimizer)
    with pytest.raises(ApexError, match=r"comes after amp.initialize"):
        amp.load_state_dict({})
    prepared("O1")
    with pytest.raises(ApexError, match=r"comes before amp.initialize"):
        amp.register_float_function(torch, "sigmoid")
    with pytest.raises(ApexError, match="has not been through"):
        backward(model, optimizer)
    with pytest.raises(ApexError, match="no function 'sigmoidal'"):
        amp.register_half_function(torch, "sigmoidal")


def test_loss_id_must_exist():
    model, optimizer = prepared("O2", num_losses=2)
    with pytest.raises(ApexError, match="loss_id=2"):
        backward(model, optimizer, loss_id=2)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_closures_are_refused(level):
    _, optimizer = prepared(level)
    with pytest.raises(ApexError, match="closure"):
        optimizer.step(lambda: 1.0)


def test_a_step_on_scaled_gradients_is_refused():
    model, optimizer = prepared("O2")
    backward(model, optimizer, delay_unscale=True)
    with pytest.raises(ApexError, match="still scaled"):
        optimizer.step()


# --- the loss scale


def test_the_scale_doubles_after_2000_clean_steps_up_to_its_maximum():
    scaler = LossScaler("dynamic", None, 2.0**17)
    for _ in range(1999):
        scaler.update(False)
    assert (scaler.scale, scaler.unskipped) == (2.0**16, 1999)
    scaler.update(False)
    assert (scaler.scale, scaler.unskipped) == (2.0**17, 0)
    for _ in range(2000):
        scaler.update(False)
    assert (scaler.scale, scaler.unskipped) == (2.0**17, 0)


def test_the_scale_halves_down_to_its_minimum():
    scaler = LossScaler("dynamic", 2.0**15, 2.0**24)
    for _ in range(3):
        scaler.update(True)
    assert (scaler.scale, scaler.unskipped) == (2.0**15, 0)
    assert LossScaler("dynamic", None, 1024.0).scale == 1024.0


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_an_overflow_skips_the_step_and_halves_the_scale(level, bad):
    model, optimizer = prepared(level, loss_scale="dynamic")
    train(model, optimizer, 2)
    before, masters = values(model), [param.detach().clone() for param in amp.master_params(optimizer)]
    optimizer.zero_grad()
    backward(model, optimizer, factor=bad)
    optimizer.step()
    assert same(before, values(model))
    assert same(masters, amp.master_params(optimizer))
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 32768.0, "unskipped": 0}
    assert all(param.grad is None for param in amp.master_params(optimizer))
    train(model, optimizer, 1)
    assert not same(before, values(model))


def test_a_fixed_scale_never_skips():
    model, optimizer = prepared("O0", loss_scale=2.0)
    backward(model, optimizer, factor=float("nan"))
    optimizer.step()
    assert model.fc.weight.isnan().all()


def test_an_overflow_is_told(capsys):
    model, optimizer = prepared("O2")
    backward(model, optimizer, factor=float("inf"))
    assert capsys.readouterr().out == ""
    amp.reset()
    model = Small()
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level="O2")
    backward(model, optimizer, factor=float("inf"))
    assert "reducing loss scale to 32768.0" in capsys.readouterr().out


@pytest.mark.parametrize("before", [True, False], ids=["scheduler-first", "amp-first"])
def test_a_scheduler_does_not_complain_of_a_skipped_first_step(before):
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if before:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    if not before:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backward(model, optimizer, factor=float("inf"))
        optimizer.step()
        scheduler.step()
        train(model, optimizer, 1)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


def test_delay_overflow_check_leaves_the_scale():
    model, optimizer = prepared("O2")
    backward(model, optimizer, delay_overflow_check=True)
    assert amp.state_dict()["loss_scaler0"]["unskipped"] == 0


def test_the_amp_state_goes_through_a_checkpoint():
    model, optimizer = prepared("O2", num_losses=2)
    backward(model, optimizer, factor=float("inf"), loss_id=1)
    saved = amp.state_dict()
    assert [scaler["loss_scale"] for scaler in saved.values()] == [65536.0, 32768.0]
    prepared("O2", num_losses=2)
    amp.load_state_dict(saved)
    assert amp.state_dict() == saved
    prepared("O2")
    with pytest.raises(ApexError, match="this run has loss_scaler0; initialize amp with the same num_losses"):
        amp.load_state_dict(saved)


# --- gradients and steps


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("delay", [False, True])
def test_gradients_add_up_over_micro_batches(level, delay):
    def gradient(halves):
        model, optimizer = prepared(level, loss_scale=1024.0)
        model.eval()  # the batch norm must not see how the batch is cut
        optimizer.zero_grad()
        for index, half in enumerate(halves):
            last = index == len(halves) - 1
            backward(
                model,
                optimizer,
                IMAGES[half],
                LABELS[half],
                1 / len(halves),
                delay_unscale=delay and not last,
            )
        return [param.grad.float() for param in amp.master_params(optimizer)]

    whole = gradient([slice(0, 8)])
    torch.testing.assert_close(gradient([slice(0, 4), slice(4, 8)]), whole, rtol=0.03, atol=0.01)


def test_an_overflow_in_one_micro_batch_skips_the_whole_step():
    model, optimizer = prepared("O2")
    before = values(model)
    backward(model, optimizer, factor=float("inf"))
    backward(model, optimizer)
    optimizer.step()
    assert same(before, values(model))


def test_clipping_the_masters_clips_the_update():
    model, optimizer = prepared("O2", lr=1.0)
    before = [param.detach().clone() for param in amp.master_params(optimizer)]
    backward(model, optimizer, factor=100.0)
    norm = nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
    assert norm > 1
    optimizer.step()
    after = list(amp.master_params(optimizer))
    update = torch.cat([(a - b).detach().flatten() for a, b in zip(after, before, strict=True)])
    assert update.norm().item() == pytest.approx(1.0, rel=1e-4)


def test_small_updates_reach_the_masters_though_half_weights_cannot_hold_them():
    model, optimizer = prepared("O2", lr=1e-7)
    weight = model.fc.weight
    before = weight.detach().clone()
    master = next(param for param in amp.master_params(optimizer) if param.shape == weight.shape)
    start = master.detach().clone()
    train(model, optimizer, 3)
    assert torch.equal(weight, before)
    assert not torch.equal(master, start)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(set_to_none):
    model, optimizer = prepared("O2")
    backward(model, optimizer)
    optimizer.zero_grad(set_to_none)
    assert all(param.grad is None or not param.grad.any() for param in model.parameters())
    assert all(param.grad is None or not param.grad.any() for param in amp.master_params(optimizer))


def test_parameters_without_gradient_stay():
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2), "frozen": nn.Linear(2, 2)})
    model["frozen"].requires_grad_(False)
    model.forward = lambda x: model["frozen"](model["used"](x))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    before = [copy.deepcopy(model[name].state_dict()) for name in ("used", "unused", "frozen")]
    with amp.scale_loss(model(torch.ones(1, 2)).sum(), optimizer) as scaled:
        scaled.backward()
    optimizer.step()
    changed = [
        not torch.equal(old["weight"], model[name].weight)
        for old, name in zip(before, ("used", "unused", "frozen"), strict=True)
    ]
    assert changed == [True, False, False]


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("named", [False, True])
def test_a_parameter_group_added_later_trains(level, named):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    params = model[0].named_parameters() if named else model[0].parameters()
    optimizer = torch.optim.SGD(params, lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    late = list(model[1].named_parameters(prefix="1")) if named else list(model[1].parameters())
    optimizer.add_param_group({"params": late, "lr": 0.5})
    before = values(model[1])
    with amp.scale_loss(model(torch.ones(1, 2)).float().sum(), optimizer) as scaled:
        scaled.backward()
    optimizer.step()
    assert optimizer.param_groups[1]["lr"] == 0.5
    assert not same(before, values(model[1]))


def test_an_optimizer_with_history_keeps_it():
    model = Small()
    optimizer = torch.optim.Adam(model.parameters())
    F.cross_entropy(model(IMAGES), LABELS).backward()
    optimizer.step()
    moment = optimizer.state[model.conv.weight]["exp_avg"].clone()
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    master = next(amp.master_params(optimizer))
    assert torch.equal(optimizer.state[master]["exp_avg"], moment)
    train(model, optimizer, 1)
    assert optimizer.state[master]["step"] == 2


def test_two_models_two_optimizers_three_losses():
    torch.manual_seed(0)
    models = [nn.Linear(4, 1), nn.Linear(4, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    models, optimizers = amp.initialize(models, optimizers, opt_level="O1", num_losses=3, verbosity=0)
    before = [values(model) for model in models]
    features = torch.randn(8, 4)
    outputs = [model(features) for model in models]
    losses = [
        outputs[0].square().mean(),
        outputs[1].square().mean() * float("inf"),
        (outputs[0] * outputs[1]).mean(),
    ]
    with amp.scale_loss(losses[0], optimizers[0], loss_id=0) as scaled:
        scaled.backward(retain_graph=True)
    with amp.scale_loss(losses[1], optimizers[1], loss_id=1) as scaled:
        scaled.backward(retain_graph=True)
    with amp.scale_loss(losses[2], optimizers, loss_id=2) as scaled:
        scaled.backward()
    for optimizer in optimizers:
        optimizer.step()
    assert [scaler["loss_scale"] for scaler in amp.state_dict().values()] == [65536.0, 32768.0, 65536.0]
    assert not same(before[0], values(models[0]))
    assert same(before[1], values(models[1]))


# --- checkpoints


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_resuming_goes_on_exactly(level):
    model, optimizer = prepared(level)
    train(model, optimizer, 3)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), amp.state_dict()])
    assert {value.dtype for value in saved[0].values() if value.is_floating_point()} == {torch.float32}
    expected = train(model, optimizer, 3)

    model, optimizer = prepared(level, seed=1)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    amp.load_state_dict(saved[2])
    assert train(model, optimizer, 3) == expected


def test_weights_loaded_in_mid_training_are_not_undone_by_the_masters():
    model, optimizer = prepared("O2", lr=1e-6)
    train(model, optimizer, 1)
    other = Small().state_dict()
    model.load_state_dict(other)
    train(model, optimizer, 1)
    torch.testing.assert_close(model.state_dict()["fc.weight"], other["fc.weight"], atol=1e-3, rtol=0)


def test_weights_changed_before_the_first_step_reach_the_masters():
    model, optimizer = prepared("O2", lr=1e-6)
    model.fc.weight.data.fill_(0.5)
    assert (model.state_dict()["fc.weight"] == 0.5).all()
    train(model, optimizer, 1)
    torch.testing.assert_close(model.fc.weight.float(), torch.full((3, 64), 0.5), atol=1e-3, rtol=0)


def test_a_copy_of_a_model_runs_on_its_own_weights():
    model, _ = prepared("O2")
    twin = copy.deepcopy(model)
    twin.fc.weight.data.zero_()
    twin.fc.bias.data.zero_()
    assert not twin(IMAGES).any()
    assert model(IMAGES).any()


# --- O1: casts by function


class Probe(nn.Module):
    """Runs any function inside a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))

    def forward(self, function, *args):
        return function(self.weight, *args)


def in_o1(function, *args, **options):
    amp.reset()
    model = amp.initialize(Probe(), opt_level="O1", verbosity=0, **options)
    return model(function, *args)


HALF = torch.bfloat16


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda w: w @ w, HALF),
        (lambda w: F.linear(w, w), HALF),
        (lambda w: torch.mm(w, w), HALF),
        (lambda w: w.matmul(w), HALF),
        (lambda w: torch.bmm(w[None], w[None]), HALF),
        (lambda w: w.relu(), torch.float32),
        (lambda w: (w @ w).relu(), HALF),
        (lambda w: (w @ w).softmax(1), HALF),  # apex lists F.softmax, not the method
        (lambda w: F.softmax(w @ w, 1), torch.float32),
        (lambda w: (w @ w).sum(), torch.float32),
        (lambda w: (w @ w).mean(), HALF),
        (lambda w: (w @ w) ** 2, torch.float32),
        (lambda w: 2 ** (w @ w), torch.float32),
        (lambda w: (w @ w).exp(), torch.float32),
        (lambda w: w @ w + w, torch.float32),
        (lambda w: w @ w + 1, HALF),
        (lambda w: (w @ w) * w[0, 0], torch.float32),
        (lambda w: torch.cat([w @ w, w]), torch.float32),
        (lambda w: torch.stack([w @ w, w @ w]), HALF),
        (lambda w: F.layer_norm(w @ w, (2,)), torch.float32),
        (lambda w: F.batch_norm((w @ w), None, None, w[0], w[1], True), HALF),
        (lambda w: F.mse_loss(w @ w, w), torch.float32),
        (lambda w: (w @ w).cpu(), torch.float32),
    ],
)
def test_casts_of_o1(function, dtype):
    assert in_o1(function).dtype == dtype


def test_attention_computes_in_half():
    attention = nn.MultiheadAttention(4, 2)
    model = amp.initialize(attention, opt_level="O1", verbosity=0)
    output, _ = model(torch.ones(3, 1, 4), torch.ones(3, 1, 4), torch.ones(3, 1, 4))
    assert output.dtype == HALF


def test_a_recurrent_layer_computes_in_half():
    model = amp.initialize(nn.LSTM(2, 3), opt_level="O1", verbosity=0)
    output, (state, _) = model(torch.ones(4, 1, 2))
    assert output.dtype == state.dtype == HALF


def test_binary_cross_entropy_on_half_is_refused():
    with pytest.raises(ApexError, match="binary_cross_entropy_with_logits"):
        in_o1(lambda w: F.binary_cross_entropy((w @ w).sigmoid(), w))
    assert in_o1(lambda w: F.binary_cross_entropy((w @ w).float().sigmoid(), w)).dtype == torch.float32


def test_the_loss_outside_the_model_is_float32():
    model, _ = prepared("O1")
    output = model(IMAGES)
    assert isinstance(output, AmpTensor)
    for loss in (
        F.cross_entropy(output, LABELS),
        nn.CrossEntropyLoss(label_smoothing=0.1)(output * 2, LABELS),
        -F.log_softmax(output[:4], 1).mean(),
    ):
        assert type(loss) is torch.Tensor
        assert loss.dtype == torch.float32
    exact = F.cross_entropy(output.float(), LABELS)
    assert F.cross_entropy(output, LABELS).item() == exact.item()
    F.cross_entropy(output, LABELS).backward()
    assert model.fc.weight.grad.dtype == torch.float32


def test_marked_outputs_behave_as_tensors():
    model, _ = prepared("O1")
    with torch.no_grad():
        output = model(IMAGES)
    assert output.argmax(1).shape == (8,)
    assert output.float().numpy().shape == (8, 3)
    assert type(output.max(1).values) is AmpTensor
    assert output.detach().dtype == HALF
    assert "tensor" in repr(output).lower()
    assert f"{output[0, 0]:.0e}" == f"{output[0, 0].item():.0e}"
    assert type(copy.deepcopy(output)) is type(pickle.loads(pickle.dumps(output))) is torch.Tensor
    output.mul_(0)
    assert not output.any()


def test_one_model_on_the_output_of_another():
    first, second = nn.Linear(2, 3), nn.Linear(3, 1)
    [first, second] = amp.initialize([first, second], opt_level="O1", verbosity=0)
    assert type(AmpTensor.unmark(first(torch.ones(1, 2)))) is torch.Tensor
    second(first(torch.ones(1, 2))).sum().backward()
    assert first.weight.grad.dtype == torch.float32


def test_no_trace_outside_the_model():
    functions = [F.linear, torch.mm, torch.Tensor.sum, F.cross_entropy, torch.Tensor.__matmul__]
    model, optimizer = prepared("O1")
    train(model, optimizer, 2)
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 1, 1, 1))  # fails inside the forward
    assert functions == [F.linear, torch.mm, torch.Tensor.sum, F.cross_entropy, torch.Tensor.__matmul__]
    weight = torch.ones(2, 2)
    assert (weight @ weight).dtype == torch.float32
    assert Small()(IMAGES).dtype == torch.float32


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_a_float32_run_after_amp_is_the_one_without(level):
    def plain():
        torch.manual_seed(3)
        model = Small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            loss = F.cross_entropy(model(IMAGES), LABELS)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    before = plain()
    train(*prepared(level), 2)
    assert plain() == before


def test_disable_casts():
    def function(weight):
        with amp.disable_casts():
            inside = weight @ weight
        return inside, weight @ weight

    inside, after = in_o1(function)
    assert (inside.dtype, after.dtype) == (torch.float32, HALF)


def test_registered_functions_of_torch_win_over_the_lists():
    amp.register_half_function(F, "softmax")
    amp.register_float_function(torch, "sigmoid")
    amp.register_float_function(torch.Tensor, "relu")
    model = amp.initialize(Probe(), opt_level="O1", verbosity=0)
    assert model(lambda w: F.softmax(w, 1)).dtype == HALF
    assert model(lambda w: torch.sigmoid(w @ w)).dtype == torch.float32
    assert model(lambda w: (w @ w).relu()).dtype == torch.float32
    amp.reset()
    model = amp.initialize(Probe(), opt_level="O1", verbosity=0)
    assert model(lambda w: F.softmax(w, 1)).dtype == torch.float32


class Ours:
    """A module with functions that torch knows nothing of."""

    @staticmethod
    def identity(*tensors):
        return tensors


def test_registered_functions_of_the_user():
    original = Ours.identity
    amp.register_half_function(Ours, "identity")
    model = amp.initialize(Probe(), opt_level="O1", verbosity=0)
    assert model(lambda w: Ours.identity(w))[0].dtype == HALF
    assert Ours.identity(torch.ones(1))[0].dtype == torch.float32
    amp.reset()
    assert Ours.identity is original
    amp.register_promote_function(Ours, "identity")
    model = amp.initialize(Probe(), opt_level="O1", verbosity=0)
    assert model(lambda w: Ours.identity(w, w @ w))[1].dtype == torch.float32


def test_decorators():
    half, wide = amp.half_function(lambda x: x), amp.float_function(lambda x: x)
    widest = amp.promote_function(lambda x, y: x)
    assert half(torch.ones(1)).dtype == torch.float32
    assert in_o1(lambda w: half(w)).dtype == HALF
    assert in_o1(lambda w: wide(w @ w)).dtype == torch.float32
    assert in_o1(lambda w: widest(w @ w, w)).dtype == torch.float32
    assert wide(in_o1(lambda w: w @ w)).dtype == torch.float32


def test_models_can_be_freed():
    model, optimizer = prepared("O1")
    train(model, optimizer, 1)
    del model, optimizer
    gc.collect()
    assert not [thing for thing in gc.get_objects() if type(thing) is Small]


# --- batch norm, one process


def test_conversion_keeps_weights_and_statistics():
    model = Small()
    model(IMAGES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = copy.deepcopy(model.state_dict())
    weight = model.norm.weight
    converted = parallel.convert_syncbn_model(model.eval())
    assert type(converted.norm) is parallel.SyncBatchNorm
    assert converted.norm.weight is weight
    assert not converted.norm.training
    assert converted.norm.num_batches_tracked == 1
    assert all(torch.equal(value, expected[name]) for name, value in converted.state_dict().items())
    assert {id(p) for p in converted.parameters()} == {id(p) for p in optimizer.param_groups[0]["params"]}


def test_conversion_of_a_bare_and_of_a_shared_batch_norm():
    assert type(parallel.convert_syncbn_model(nn.BatchNorm1d(2))) is parallel.SyncBatchNorm
    norm = nn.BatchNorm1d(2)
    shared = parallel.convert_syncbn_model(nn.Sequential(norm, nn.ReLU(), norm))
    assert shared[0] is shared[2]
    instance = parallel.convert_syncbn_model(nn.Sequential(nn.InstanceNorm2d(2)))
    assert type(instance[0]) is nn.InstanceNorm2d


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4), (5, 3, 4, 2)])
def test_alone_it_is_a_plain_batch_norm(momentum, affine, shape):
    options = {"momentum": momentum, "affine": affine, "dtype": torch.float64}
    plain = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)](3, **options)
    sync = parallel.convert_syncbn_model(copy.deepcopy(plain))
    for _ in range(2):
        left = (torch.randn(shape, dtype=torch.float64) * 3 + 100).requires_grad_()
        right = left.detach().clone().requires_grad_()
        torch.testing.assert_close(sync(left), plain(right), rtol=1e-12, atol=1e-12)
        sync(left).square().mul(torch.arange(5.0).view(5, *[1] * (len(shape) - 1))).sum().backward()
        plain(right).square().mul(torch.arange(5.0).view(5, *[1] * (len(shape) - 1))).sum().backward()
        torch.testing.assert_close(left.grad, right.grad, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(sync.state_dict(), plain.state_dict(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sync.eval()(left), plain.eval()(right), rtol=1e-12, atol=1e-12)


def test_options_of_sync_batch_norm():
    images = torch.randn(4, 3, 5)
    sync = parallel.SyncBatchNorm(3, channel_last=True)
    torch.testing.assert_close(sync(images.movedim(1, -1)).movedim(-1, 1), nn.BatchNorm1d(3)(images))
    fused = parallel.SyncBatchNorm(3, fuse_relu=True)
    torch.testing.assert_close(fused(images, images), (nn.BatchNorm1d(3)(images) + images).relu())
    untracked = parallel.SyncBatchNorm(3, track_running_stats=False).eval()
    torch.testing.assert_close(untracked(images), nn.BatchNorm1d(3)(images))
    with pytest.raises(ApexError, match="3 features"):
        sync(images)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_sync_batch_norm_under_amp(level, half):
    torch.manual_seed(0)
    model = parallel.convert_syncbn_model(Small())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, half_dtype=half)
    assert model.norm.weight.dtype == (half if level == "O3" else torch.float32)
    dtypes = []
    model.norm.register_forward_hook(lambda _, inputs, output: dtypes.append((inputs[0].dtype, output.dtype)))
    losses = train(model, optimizer, 5)
    assert set(dtypes) == {(half, half)}
    assert losses[-1] < losses[0]
    plain, optimizer = prepared(level, half_dtype=half)
    torch.testing.assert_close(losses, train(plain, optimizer, 5), rtol=0.03, atol=0)


def test_conversion_comes_before_the_wrapper():
    with pytest.raises(ApexError, match="convert the model first"):
        parallel.convert_syncbn_model(nn.DataParallel(Small()))


def test_parallel_needs_a_process_group():
    for make in (parallel.DistributedDataParallel, parallel.Reducer):
        with pytest.raises(ApexError, match="init_process_group"):
            make(Small())
