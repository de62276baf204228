import socket

import pytest

from bench.judge import cause_of_death, judge, last_words
from bench.processes import Outcome
from tests.bench.fakes import CONFIG, job, raw_record

ENDED = Outcome(exit_code=0, wall_s=1.0)

TORCHRUN_KILLED = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "k.py", line 5, in <module>
[rank0]: RuntimeError: Read error [127.0.0.1]:45248: Connection reset by peer.
E1201 04:18:44.727 9627 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  time      : 2026-12-01_04:18:44
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 9637)  (SIGTERM)
  error_file: <N/A>
------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-12-01_04:18:44
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 9638)  (SIGKILL)
"""


def torchrun(rank: int, exit_code: int, said: str = "") -> str:
    return f"{said}\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : {exit_code} (pid: 9638)\n"


def asked(raw: dict | None) -> dict:
    """What the fake was asked to train: what it says it did."""
    return {**CONFIG, "warmup_steps": 0}


def verdict(raw: dict | None, world_size: int = 2) -> tuple[str, str | None]:
    given = judge(raw, ENDED, job(world_size=world_size), asked(raw), usable_cores=2, log="")
    return given.status, given.reason


def test_a_healthy_run_is_plainly_ok() -> None:
    assert verdict(raw_record()) == ("ok", None)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (None, "left no record"),
        (raw_record(schema=7), "schema 7"),
        (raw_record(1), "asked for 2 ranks, 1 trained together"),
        (raw_record(world_size=2, ranks=raw_record(1)["ranks"]), "the record has"),
        (raw_record(rank_changes={1: {"loss": [1.0]}}), "rank 1 left 1 steps of 4"),
        (raw_record(steps=0), "no training step"),
        (raw_record(rank_changes={1: {"threads": 2}}), "different numbers of threads"),
        (
            raw_record(rank_changes={0: {"threads": 2}, 1: {"threads": 2}}),
            "each rank ran 2 threads, all rows are to run 1",
        ),
        (raw_record(rank_changes={1: {"weights_sha256": "bb"}}), "drifted apart: rank 1 differ"),
        ({"schema": 1}, "cannot be read"),
    ],
)
def test_a_run_that_is_not_what_was_asked_has_failed(raw: dict | None, reason: str) -> None:
    status, said = verdict(raw)
    assert status == "failed"
    assert reason in said


@pytest.mark.parametrize(
    ("asked", "computed", "status"),
    [
        ("float64", "float64", "ok"),
        ("float64", "float32", "failed"),
        ("bfloat16", "bfloat16", "ok"),
        ("bfloat16", "float32", "failed"),
        ("float16", "bfloat16", "failed"),
    ],
)
def test_what_was_computed_in_must_be_what_was_asked(asked: str, computed: str, status: str) -> None:
    precision = {"weights": "float32", "asked": asked, "compute": computed, "scaler": False}
    assert verdict(raw_record(precision=precision))[0] == status


def test_a_loss_that_is_not_finite_is_divergence_from_its_first_step() -> None:
    raw = raw_record(rank_changes={1: {"loss": [1.0, 2.0, None, None]}})
    assert verdict(raw) == ("diverged", "the loss is not finite from step 3 of 4 on")


def test_data_parallel_without_gpus_is_called_a_pass_through() -> None:
    raw = raw_record(1, wrapper="DataParallel")
    assert verdict(raw, 1) == ("ok", "pass-through: nn.DataParallel ran 1 replica")


def test_ranks_that_share_a_gpu_are_told() -> None:
    raw = raw_record(rank_changes={0: {"device": "cuda:0"}, 1: {"device": "cuda:0"}})
    assert verdict(raw) == ("ok", "2 ranks share 1 GPU, over gloo")


def test_float16_on_a_cpu_is_not_to_be_ranked() -> None:
    precision = {"weights": "float32", "asked": "float16", "compute": "float16", "scaler": True}
    assert "not to be ranked" in verdict(raw_record(precision=precision))[1]


def test_a_technique_that_this_machine_lacks_is_skipped() -> None:
    said = "fsdp.py: unavailable: needs 2 GPUs\n"
    for exit_code, log in ((69, said), (1, torchrun(0, 69, said))):
        given = judge(None, Outcome(exit_code, 1.0), job(), CONFIG, 2, log)
        assert (given.status, given.reason) == ("skipped", "needs 2 GPUs")


@pytest.mark.parametrize(("exit_code", "code_of_rank"), [(1, 7), (-9, None)])
def test_to_say_unavailable_and_then_break_is_a_failure(exit_code: int, code_of_rank: int | None) -> None:
    said = "mine.py: unavailable: a mirror, trying another\n"
    log = torchrun(0, code_of_rank, said) if code_of_rank else said
    assert judge(None, Outcome(exit_code, 1.0), job(), CONFIG, 2, log).status == "failed"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"seed": 1}, "asked for seed 0, trained with 1"),
        ({"train_images": 256}, "asked for train_images 512, trained with 256"),
        ({"data_dir": "/other/sets"}, "asked for data_dir None, trained with sets"),
    ],
)
def test_other_flags_than_asked_are_a_failure(config: dict, said: str) -> None:
    raw = raw_record()
    assert verdict({**raw, "config": {**raw["config"], **config}}) == ("failed", said)


def test_a_flag_that_the_record_leaves_out_is_a_failure() -> None:
    raw = raw_record()
    del raw["config"]["momentum"]
    assert verdict(raw) == ("failed", "its record does not say which momentum it trained with")


def test_the_folder_of_the_data_is_compared_by_its_name() -> None:
    raw = raw_record()
    raw["config"]["data_dir"] = "/home/someone/sets"
    config = {**raw["config"], "data_dir": "sets"}
    assert judge(raw, ENDED, job(), config, 2, "").status == "ok"


def test_a_resumed_run_makes_the_epochs_that_were_left() -> None:
    raw = raw_record()
    raw["config"]["epochs"] = 3
    assert judge(raw, ENDED, job(), raw["config"], 2, "").status == "ok"


def test_ranks_whose_images_do_not_divide_get_some_twice() -> None:
    raw = raw_record(steps=3)
    raw["config"]["train_images"] = 383  # 192 for either rank, which are 3 batches of 64
    assert judge(raw, ENDED, job(), raw["config"], 2, "").status == "ok"
    assert (
        judge(
            {**raw, "world_size": 1, "ranks": raw["ranks"][:1]},
            ENDED,
            job(world_size=1),
            raw["config"],
            1,
            "",
        ).status
        == "failed"
    )


def test_a_loss_without_a_graph_is_a_failure() -> None:
    precision = {"weights": "float32", "asked": "float32", "compute": None, "scaler": False}
    status, said = verdict(raw_record(precision=precision))
    assert status == "failed"
    assert "the loss handed to log.step has no graph" in said


def test_too_few_threads_are_a_failure_on_a_cpu_alone() -> None:
    few = {rank: {"threads": 1} for rank in (0, 1)}
    status, said = judge_on(4, raw_record(rank_changes=few))
    assert (status, said) == ("failed", "each rank ran 1 threads, all rows are to run 2")
    on_gpus = {rank: {"threads": 1, "device": f"cuda:{rank}"} for rank in (0, 1)}
    assert judge_on(4, raw_record(rank_changes=on_gpus)) == ("ok", None)


def judge_on(cores: int, raw: dict) -> tuple[str, str | None]:
    given = judge(raw, ENDED, job(), asked(raw), cores, "")
    return given.status, given.reason


def test_weights_that_were_never_hashed_are_told() -> None:
    blank = {rank: {"weights_sha256": None} for rank in (0, 1)}
    status, said = verdict(raw_record(rank_changes=blank))
    assert status == "ok"
    assert "were not compared" in said


def test_what_stands_in_for_something_is_called_emulated() -> None:
    ours = raw_record(
        batch_norms=["AllReduceBatchNorm"], apex={"name": "stand-in", "reason": "apex is not installed"}
    )
    assert verdict(ours) == (
        "ok",
        "emulated: stand-in for apex: apex is not installed; "
        "emulated: a batch norm of ours over an all-reduce, as nn.SyncBatchNorm has no CPU kernels",
    )


@pytest.mark.parametrize(
    ("exit_code", "log", "said"),
    [
        (1, TORCHRUN_KILLED, "rank 1 was killed by SIGKILL"),
        (1, torchrun(1, 7), "rank 1 ended with exit code 7"),
        (1, torchrun(1, 1, "[rank0]: OSError: other\n[rank1]: ValueError: bad"), "rank 1: ValueError: bad"),
        (1, torchrun(0, 2, "ddp.py: error: no such class"), "no such class"),
        (2, "single.py: error: no such class", "no such class"),
        (1, "Traceback\n  x\nMyError: bad\n", "the process: MyError: bad"),
        (1, "Traceback\n  x\nKeyboardInterrupt\n", "the process: KeyboardInterrupt"),
        (-11, "", "the process was killed by SIGSEGV"),
        (3, "", "the process ended with exit code 3"),
        (
            1,
            "ProcessExitedException: process 1 terminated with signal SIGKILL",
            "rank 1 was killed by SIGKILL",
        ),
        (1, "ProcessExitedException: process 0 terminated with exit code 7", "rank 0"),
        (
            1,
            "torch.multiprocessing.spawn.ProcessRaisedException:\n\n"
            "-- Process 1 terminated with the following error:\nTraceback\nValueError: bad\n",
            "rank 1: ValueError: bad",
        ),
    ],
)
def test_who_died_of_what(exit_code: int, log: str, said: str) -> None:
    assert said in cause_of_death(exit_code, log)


def test_the_last_words_are_those_of_the_ranks() -> None:
    assert last_words(TORCHRUN_KILLED, 2) == TORCHRUN_KILLED.splitlines()[1:3]
    assert last_words("\n\nonly this\n\n", 20) == ["only this"]


def test_a_wrong_interface_is_answered_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")], raising=False)
    said = cause_of_death(1, "[rank0]: RuntimeError: Unable to find address for: nosuch0")
    assert "nosuch0" in said
    assert "lo, eth0" in said
