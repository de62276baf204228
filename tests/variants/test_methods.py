"""What a technique promises: the same training where it is the same, a bounded difference where it is not."""

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP

from bench.derive import loss_curve, warmup_steps
from tests.ranks import VARIANTS, RankError, run_as_main, run_ranks, run_variant
from tests.variants.test_global_batches import batches_of

SMALL = ("--model", "tests.networks:Small")
TWENTY_STEPS = (*SMALL, "--train-images", "320", "--global-batch-size", "16")
FLOAT64 = ("--dtype", "float64")
PARAMETERS = 1690

SAME = ["ddp_by_hand", "ddp_accum", "zero1", "fsdp", "accelerate_ddp"]
# Another training on purpose, and by how much of the loss at most in 20 steps:
OTHER = {
    "ddp_compress": 1e-3,  # gradients rounded to bfloat16, 8 bits
    "ddp_powersgd": 0.05,  # gradients of rank 2 from step 10 on
    "ddp_local_sgd": 0.05,  # weights of its own on each rank from step 10 on
}


def differences(variant: str, world_size: int, *flags: str) -> np.ndarray:
    """How far the loss is from that of single, at each of 20 steps."""
    ours = loss_curve(run_variant(variant, world_size, *TWENTY_STEPS, *flags))
    reference = loss_curve(run_variant("single", 1, *TWENTY_STEPS, *flags))
    assert len(ours) == len(reference) == 20
    return np.abs(ours - reference)


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("variant", SAME)
def test_the_same_training_as_single(variant, world_size):
    assert differences(variant, world_size, *FLOAT64).max() <= 1e-12


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("variant", OTHER)
def test_another_training_by_a_bounded_amount(variant, world_size):
    assert 0 < differences(variant, world_size, *FLOAT64).max() <= OTHER[variant]


@pytest.mark.parametrize("variant", ["ddp_powersgd", "ddp_local_sgd"])
def test_until_its_first_step_it_is_ddp(variant):
    by_step = differences(variant, 2, *FLOAT64)
    assert by_step[:11].max() <= 1e-12
    # The mean of weights that are one step apart is what ddp has: local SGD shows a step later.
    assert by_step[12:].min() > 1e-9


def test_local_sgd_on_one_rank_is_single():
    assert differences("ddp_local_sgd", 1, *FLOAT64).max() <= 1e-12


@pytest.mark.parametrize("variant", ["ddp_compress", "ddp_powersgd", "fsdp_amp"])
def test_it_runs_on_one_rank(variant):
    flags = (*SMALL, "--train-images", "48", "--global-batch-size", "16", "--lr-schedule", "constant")
    assert run_variant(variant, 1, *flags)["world_size"] == 1


@pytest.mark.parametrize("variant", [*SAME, *OTHER])
def test_replicas_end_with_identical_weights_though_they_saw_other_images(variant):
    ranks = run_variant(variant, 2, *TWENTY_STEPS, *FLOAT64)["ranks"]
    assert ranks[0]["weights_sha256"] == ranks[1]["weights_sha256"]
    assert ranks[0]["loss"] != ranks[1]["loss"]


def test_by_hand_is_ddp_to_the_bit():
    ours, ddp = (run_variant(name, 2, *TWENTY_STEPS) for name in ("ddp_by_hand", "ddp"))
    assert ours["ranks"][0]["weights_sha256"] == ddp["ranks"][0]["weights_sha256"]
    assert ours["wrapper"] == "Small"


def test_channels_last_is_the_same_training():
    assert differences("single_channels_last", 1, *FLOAT64).max() <= 1e-12


# What is sent


def note_reductions(path: str, flags: list[str], alone: bool, folder: str) -> None:
    """Run a variant with a hook in its DDP that counts the buckets it all-reduces."""
    count = 0
    build = DDP.__init__

    def hook(group, bucket):
        nonlocal count
        count += 1
        return allreduce_hook(group, bucket)

    def build_with_hook(self, *args, **kwargs):
        build(self, *args, **kwargs)
        self.register_comm_hook(None, hook)

    DDP.__init__ = build_with_hook
    run_as_main(path, flags, alone)
    Path(folder, os.environ.get("RANK", "0")).write_text(str(count))


# The model is one bucket. ddp_accum has 80 micro-batches; local SGD reduces gradients in its first 10 steps.
@pytest.mark.parametrize("variant, times", [("ddp", "20"), ("ddp_accum", "20"), ("ddp_local_sgd", "10")])
def test_gradients_are_reduced_at_most_once_per_optimizer_step(variant, times, tmp_path):
    path = str(VARIANTS / f"{variant}.py")
    run_ranks(note_reductions, 2, path, list(TWENTY_STEPS), False, str(tmp_path))
    assert [(tmp_path / rank).read_text() for rank in "01"] == [times, times]


def note_gradient_norms(path: str, flags: list[str], alone: bool, folder: str) -> None:
    """Run a variant and note the norm of the gradient at each optimizer step."""
    norms = []
    step = torch.optim.SGD.step

    def noted(self, *args, **kwargs):
        gradients = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        norms.append(torch.nn.utils.get_total_norm(gradients).item())
        return step(self, *args, **kwargs)

    torch.optim.SGD.step = noted
    run_as_main(path, flags, alone)
    Path(folder, os.environ.get("RANK", "0")).write_text(json.dumps(norms))


# 5 images per rank do not divide into 4 micro-batches: the last one is smaller, and counts for less.
@pytest.mark.parametrize("batch", ["16", "10"])
def test_the_accumulated_gradient_has_the_norm_of_the_whole_batch(batch, tmp_path):
    flags = [*SMALL, *FLOAT64, "--train-images", "35", "--global-batch-size", batch]
    norms = {}
    for variant, world_size in (("single", 1), ("ddp_accum", 2)):
        folder = tmp_path / variant
        folder.mkdir()
        path = str(VARIANTS / f"{variant}.py")
        run_ranks(note_gradient_norms, world_size, path, flags, world_size == 1, str(folder))
        norms[variant] = json.loads((folder / "0").read_text())
    assert len(norms["single"]) == 35 // int(batch)
    assert np.array(norms["ddp_accum"]) / np.array(norms["single"]) == pytest.approx(1, abs=1e-12)


def note_sent(path: str, flags: list[str], alone: bool, folder: str) -> None:
    """Run a variant and note dtype and size of all that Python all-reduces, the hooks too."""
    sent = []
    all_reduce = dist.all_reduce

    def noted(tensor, *args, **kwargs):
        sent.append([str(tensor.dtype), tensor.numel()])
        return all_reduce(tensor, *args, **kwargs)

    dist.all_reduce = noted
    run_as_main(path, flags, alone)
    Path(folder, os.environ.get("RANK", "0")).write_text(json.dumps(sent))


def sent_by(variant: str, folder: Path) -> list[list]:
    """What rank 0 of 2 sent in 20 steps; scalars (of the evaluation and the log) left out."""
    run_ranks(note_sent, 2, str(VARIANTS / f"{variant}.py"), list(TWENTY_STEPS), False, str(folder))
    return [call for call in json.loads((folder / "0").read_text()) if call[1] > 1]


def test_compressed_gradients_travel_in_bfloat16(tmp_path):
    assert sent_by("ddp_compress", tmp_path) == [["torch.bfloat16", PARAMETERS]] * 20


def test_powersgd_sends_whole_gradients_first_and_then_small_factors(tmp_path):
    sent = sent_by("ddp_powersgd", tmp_path)
    assert [size for _, size in sent[:10]] == [PARAMETERS] * 10
    biases, ps, qs = 8 + 10, 2 * (8 + 10), 2 * (49 + 128)  # of an 8 x 49 and a 10 x 128 matrix
    assert [size for _, size in sent[10:]] == [biases, ps, qs] * 10


def test_local_sgd_sends_its_weights_in_one_step_of_four_and_at_the_end(tmp_path):
    assert sent_by("ddp_local_sgd", tmp_path) == [["torch.float32", PARAMETERS]] * (3 + 1)


# Where state lies


def held(variant: str, what: str) -> list[int]:
    return [rank[what] for rank in run_variant(variant, 2, *TWENTY_STEPS, *FLOAT64)["ranks"]]


def test_zero_shares_out_the_optimizer_state_and_trains_as_ddp_to_the_bit():
    whole = PARAMETERS * 8
    assert held("ddp", "optimizer_bytes") == [whole, whole]
    shares = held("zero1", "optimizer_bytes")
    assert sum(shares) == whole and max(shares) < whole
    ours, ddp = (run_variant(name, 2, *TWENTY_STEPS, *FLOAT64) for name in ("zero1", "ddp"))
    assert ours["ranks"][0]["weights_sha256"] == ddp["ranks"][0]["weights_sha256"]


@pytest.mark.parametrize("what", ["weight_bytes", "optimizer_bytes"])
def test_fsdp_shares_out_weights_and_optimizer_state(what):
    assert held("fsdp", what) == [PARAMETERS * 8 / 2] * 2


# Precision


def test_fsdp_with_its_policy_computes_in_bfloat16_and_stays_near():
    raw = run_variant("fsdp_amp", 2, *TWENTY_STEPS)
    assert raw["precision"]["compute"] == "bfloat16"
    assert raw["precision"]["loss"] == raw["precision"]["weights"] == "float32"
    assert raw["ranks"][0]["weights_sha256"] == raw["ranks"][1]["weights_sha256"]
    assert 0 < differences("fsdp_amp", 2).max() <= 0.05


def test_fsdp_with_its_policy_keeps_batch_norm_in_float32():
    flags = ("--train-images", "64", "--global-batch-size", "16")
    assert run_variant("fsdp_amp", 2, *flags)["precision"]["compute"] == "bfloat16"


def refused(
    variant: str, *flags: str, world_size: int = 2, alone: bool = False, ranks=run_as_main
) -> RankError:
    with pytest.raises(RankError) as stop:
        run_ranks(ranks, world_size, str(VARIANTS / f"{variant}.py"), list(flags), alone)
    assert "Traceback" not in stop.value.output
    return stop.value


@pytest.mark.parametrize("flag, value", [("--dtype", "float64"), ("--amp-dtype", "float16")])
def test_fsdp_amp_says_what_it_cannot_do(flag, value):
    stop = refused("fsdp_amp", *TWENTY_STEPS, flag, value)
    assert stop.exit_codes == ([2, 2] if flag == "--dtype" else [69, 69])  # 69: cannot be had, no mistake
    assert value in stop.output


# torch.compile: one small run of each, as compiling takes its time


@pytest.mark.slow
def test_compiled_ddp_is_the_same_training_and_compile_time_is_told_apart():
    assert differences("ddp_compile", 2, *FLOAT64).max() <= 1e-12
    raw = run_variant("ddp_compile", 2, *TWENTY_STEPS, *FLOAT64)
    assert raw["precision"]["compute"] == "float64"
    for rank in raw["ranks"]:
        assert 100 < 1000 * rank["compile_s"] < rank["step_ms"][0]
        assert max(rank["step_ms"][warmup_steps(raw) :]) < rank["step_ms"][0] / 2
    assert run_variant("ddp", 2, *TWENTY_STEPS, *FLOAT64)["ranks"][0]["compile_s"] is None


@pytest.mark.slow
def test_compiled_mixed_precision_computes_in_bfloat16_and_stays_near_single_amp():
    raws = [run_variant(name, 1, *TWENTY_STEPS) for name in ("single_compile", "single_amp")]
    assert [raw["precision"]["compute"] for raw in raws] == ["bfloat16", "bfloat16"]
    # Compiled code may round to bfloat16 in fewer places.
    assert np.abs(loss_curve(raws[0]) - loss_curve(raws[1])).max() <= 0.02


@pytest.mark.slow
def test_the_precision_inside_compiled_code_is_seen():
    flags = ("--model", "tests.networks:Widened", "--train-images", "32", "--global-batch-size", "16")
    assert run_variant("single_compile", 1, *flags)["precision"]["compute"] == "bfloat16"


def run_without_compiler(path: str, flags: list[str], alone: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(PATH=folder, TORCHINDUCTOR_CACHE_DIR=folder)  # no g++, no compiled code
        run_as_main(path, flags, alone)


@pytest.mark.slow
def test_without_a_cpp_compiler_compiling_is_refused_in_one_line():
    stop = refused("single_compile", *TWENTY_STEPS, world_size=1, alone=True, ranks=run_without_compiler)
    assert stop.exit_codes == [69]
    assert "C++ compiler" in stop.output


# accelerate


@pytest.mark.parametrize("world_size", [2, 3])
def test_accelerate_takes_the_global_batches_of_single(world_size, tmp_path):
    (single,) = batches_of("single", 1, 42, tmp_path / "single")
    ranks = batches_of("accelerate_ddp", world_size, 42, tmp_path / "accelerate")
    for step, images in enumerate(single):
        together = [index for rank in ranks for index in rank[step]]
        assert len(together) == 42
        assert set(together) == set(images)


def test_accelerate_trains_on_as_many_ranks_as_were_asked_for_and_wants_a_launcher():
    assert run_variant("accelerate_ddp", 4, *TWENTY_STEPS, *FLOAT64)["world_size"] == 4
    # accelerate launch --cpu --num_processes 2 starts one process, without LOCAL_RANK
    stop = refused("accelerate_ddp", *TWENTY_STEPS, world_size=1, alone=True)
    assert stop.exit_codes == [2]
    assert "torchrun" in stop.output


def run_without_accelerate(path: str, flags: list[str], alone: bool) -> None:
    sys.modules["accelerate"] = None
    run_as_main(path, flags, alone)


def test_without_accelerate_one_line_says_so():
    stop = refused("accelerate_ddp", *TWENTY_STEPS, ranks=run_without_accelerate)
    assert stop.exit_codes == [69, 69]
    assert "pip install accelerate" in stop.output


# A parameter that the loss does not depend on


def test_ddp_names_a_parameter_without_gradient_and_single_does_not_mind():
    flags = ("--model", "tests.networks:Unused", "--train-images", "48", "--global-batch-size", "16")
    stop = refused("ddp", *flags)
    assert stop.exit_codes == [2, 2]
    assert "forgotten.weight, forgotten.bias" in stop.output
    assert run_variant("single", 1, *flags)["steps"] == 3


# Warnings


def run_with_warnings_as_errors(path: str, flags: list[str], alone: bool) -> None:
    warnings.simplefilter("error")
    run_as_main(path, flags, alone)


@pytest.mark.parametrize("variant", [*SAME, *OTHER, "fsdp_amp", "single_channels_last"])
def test_it_warns_of_nothing_with_batch_norm_and_a_constant_rate(variant):
    flags = ["--train-images", "32", "--global-batch-size", "16", "--lr-schedule", "constant"]
    alone = variant.startswith("single")
    path = str(VARIANTS / f"{variant}.py")
    run_ranks(run_with_warnings_as_errors, 1 if alone else 2, path, flags, alone)
