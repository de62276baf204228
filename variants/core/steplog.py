"""The two calls a variant makes for the record: `log.step(loss)` and `log.epoch(accuracy)`."""

import hashlib
import importlib.util
import json
import math
import os
import sys
import time
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from .checkpoint import Checkpoint
from .config import Config, fail
from .device import local_world_size
from .environment import environment, host_id
from .evaluate import Accuracy
from .memory import memory_peaks, training_state_bytes
from .precision import asked_dtype, computed_dtype, dtype_name
from .ranks import gather, grouped, rank, unwrap, whole, world_size

SCHEMA = 1
_SHOW_EVERY_S = 0.5


class StepLog:
    """Clocks every step, keeps every loss, and at the end writes the record of all ranks.

    The clock runs from the end of one `step` call to the next, which takes in loading, copies, forward,
    backward, optimizer and scheduler. It is a clock read on CPUs and a CUDA event on GPUs: nothing here waits
    for the device. Evaluation, checkpoints and this class's own bookkeeping lie between the last `step` of an
    epoch and the end of `epoch`, and are not timed.
    """

    def __init__(
        self,
        cfg: Config,
        device: torch.device,
        checkpoint: Checkpoint | None = None,
        steps_per_epoch: int | None = None,
        **extra: Any,
    ) -> None:
        """`extra`: plain values that a technique wants in its record, such as which apex ran."""
        self.cfg, self.device, self.steps_per_epoch, self.extra = cfg, device, steps_per_epoch, extra
        self.model = checkpoint.model if checkpoint else None
        self.parts = checkpoint.parts if checkpoint else {}
        self.started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.created_s = time.time()
        self.epochs: list[dict[str, Any]] = []
        self.step_ms: list[float] = []
        self.losses: list[float] = []
        self.lrs: list[float] = []
        self.compute: str | None = None
        self.loss_dtype: str | None = None
        self._epochs_to_do = cfg.epochs - (checkpoint.epochs_done if checkpoint else 0)
        self._marks: list[Any] = []
        self._pending: list[torch.Tensor] = []
        self._progress = _Progress(steps_per_epoch * self._epochs_to_do if steps_per_epoch else None)
        optimizer = self.parts.get("optimizer")
        optimizer = self.optimizer = getattr(optimizer, "optimizer", optimizer)  # inside accelerate's
        self._counts_steps = hasattr(optimizer, "register_step_post_hook")
        if self._counts_steps:
            # Runs only when the optimizer really steps: a step skipped for an overflow is not in `lrs`.
            optimizer.register_step_post_hook(
                lambda optimizer, *_: self.lrs.append(optimizer.param_groups[0]["lr"])
            )
        if cfg.tensorboard and importlib.util.find_spec("tensorboard") is None:
            fail("--tensorboard needs the package tensorboard: pip install tensorboard")
        self._mark_start()

    def step(self, loss: torch.Tensor) -> None:
        """Call after each optimizer step with this rank's loss (0-d, the mean over its images)."""
        self._marks.append(self._now())
        self._pending.append(loss.detach())
        if self.compute is None:  # once, in the first step, which is never a steady one
            self.compute = computed_dtype(loss)
            self.loss_dtype = dtype_name(loss.dtype)
            self._check_gradients()
        self._progress.show(len(self.losses) + len(self._pending))

    def _check_gradients(self) -> None:
        """DDP waits for every gradient; its own error comes a step later, and with numbers for names."""
        if self.model is None or not any(isinstance(module, DDP) for module in self.model.modules()):
            return
        if any(getattr(module, "find_unused_parameters", False) for module in self.model.modules()):
            return
        unused = [
            name
            for name, parameter in unwrap(self.model).named_parameters()
            if parameter.requires_grad and parameter.grad is None
        ]
        # All of them: the script has cleared its gradients already, so nothing can be said.
        if unused and any(parameter.grad is not None for parameter in unwrap(self.model).parameters()):
            fail(
                f"the loss does not depend on {', '.join(unused)}: DDP needs a gradient of every parameter. "
                "Take it out of the model, or freeze it by requires_grad_(False)"
            )

    def epoch(self, accuracy: Accuracy | float) -> None:
        """Call after each evaluation, on all ranks. Writes the record after the last epoch."""
        entered_s = time.time()
        step_ms = self._intervals_ms()
        losses = torch.stack(self._pending).tolist() if self._pending else []
        self.step_ms += step_ms
        self.losses += losses
        self.epochs.append(
            {
                "steps": len(losses),
                "train_s": sum(step_ms) / 1000,
                "ended_s": round(entered_s - self.created_s, 3),
                "test_accuracy": float(accuracy),
                "test_images": getattr(accuracy, "total", None),
            }
        )
        self._say(losses)
        if len(self.epochs) == self._epochs_to_do:
            self._finish()
        self._pending.clear()
        if grouped():  # rank 0 has printed and written: what it took must not count as a step of the others
            dist.barrier()
        self._mark_start()

    def _now(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _mark_start(self) -> None:
        self._marks = [self._now()]

    def _intervals_ms(self) -> list[float]:
        """The time between neighbouring marks of this epoch, in ms."""
        pairs = list(zip(self._marks, self._marks[1:], strict=False))
        if self.device.type != "cuda":
            return [(end - start) * 1000 for start, end in pairs]
        torch.cuda.synchronize(
            self.device
        )  # off the clock: all events must have happened before they are read
        return [start.elapsed_time(end) for start, end in pairs]

    def _say(self, losses: list[float]) -> None:
        """One line for whoever started the variant by hand, and the TensorBoard scalars."""
        epoch = self.epochs[-1]
        # All ranks must take part in the sum, as a rank's own loss is only that of its share of the images.
        loss = _mean_over_ranks(sum(losses) / len(losses) if losses else math.nan, self.device)
        if rank() != 0:
            return
        number = self.cfg.epochs - self._epochs_to_do + len(self.epochs)
        rate = (
            self.cfg.global_batch_size * epoch["steps"] / epoch["train_s"] if epoch["train_s"] else math.nan
        )
        self._progress.clear()
        print(
            f"epoch {number}/{self.cfg.epochs}: loss {loss:.4f}, test accuracy {epoch['test_accuracy']:.2%}, "
            f"{rate:,.0f} images/s with the first steps counted in",
            flush=True,
        )
        if self.cfg.tensorboard:
            self._write_tensorboard(number, loss, epoch["test_accuracy"], rate)

    def _write_tensorboard(self, number: int, loss: float, accuracy: float, rate: float) -> None:
        from torch.utils.tensorboard import SummaryWriter  # an extra, imported only where it is asked for

        with SummaryWriter(self.cfg.tensorboard) as writer:
            writer.add_scalar("train/loss", loss, number)
            writer.add_scalar("test/accuracy", accuracy, number)
            writer.add_scalar("train/images_per_s", rate, number)

    def _finish(self) -> None:
        ranks = gather(self._own_part())
        if rank() == 0 and self.cfg.record:
            write_json(self._record(ranks), Path(self.cfg.record))

    def _own_part(self) -> dict[str, Any]:
        """What this rank alone knows."""
        return {
            "rank": rank(),
            "host": host_id(),
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
            "compute_dtype": self.compute,
            "step_ms": [round(value, 4) for value in self.step_ms],
            "loss": self.losses,
            "weights_sha256": weights_sha256(self.model) if self.model is not None else None,
            "compile_s": compile_s(),
            **training_state_bytes(self.model, self.optimizer),
            **memory_peaks(self.device),
        }

    def _loss_scale(self) -> float | None:
        """The scale of the loss at the end, of torch's scaler or of apex amp; None when it is not scaled."""
        scaler, amp = self.parts.get("scaler"), self.parts.get("amp")
        if scaler is not None:
            return scaler.get_scale() if scaler.is_enabled() else None
        scale = amp.state_dict()["loss_scaler0"]["loss_scale"] if amp is not None else 1.0
        return None if scale == 1.0 else scale

    def _record(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        script = Path(sys.argv[0])
        scale = self._loss_scale()
        return {
            "schema": SCHEMA,
            "variant": script.stem,
            "started_at": self.started_at,
            "timing_method": "CUDA events" if self.device.type == "cuda" else "perf_counter",
            "config": {
                spec.name: getattr(self.cfg, spec.name)
                for spec in fields(self.cfg)
                if not spec.metadata["output"]
            },
            "world_size": world_size(),
            "local_world_size": local_world_size(),
            "batch_per_rank": self.cfg.global_batch_size // world_size(),
            "lr_rule": "none: the global batch, and so the learning rate, is the same for every world size",
            "backend": dist.get_backend() if grouped() else None,
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            "replicas": _replicas(self.model),
            "wrapper": type(self.model).__name__ if self.model is not None else None,
            "batch_norms": _batch_norms(self.model),
            "parameters": sum(p.numel() for p in self.model.parameters()) if self.model is not None else None,
            "precision": {
                "weights": self.cfg.dtype,
                "asked": asked_dtype(self.cfg),
                "compute": self.compute,
                "loss": self.loss_dtype,
                "scaler": scale is not None,
                "final_scale": scale,
            },
            "steps": len(self.losses),
            "skipped_steps": len(self.losses) - len(self.lrs) if self._counts_steps else None,
            "steps_per_epoch": self.steps_per_epoch,
            "lr": self.lrs,
            "epochs": self.epochs,
            "ranks": ranks,
            "environment": environment(),
            **{key: asdict(value) if is_dataclass(value) else value for key, value in self.extra.items()},
        }


class _Progress:
    """Says how far a run is, at most twice a second: to the harness by a file, to a terminal by a line."""

    def __init__(self, steps: int | None) -> None:
        self.total = steps
        self.file = os.environ.get("BENCH_PROGRESS") if rank() == 0 else None
        self.on_terminal = rank() == 0 and not self.file and sys.stdout.isatty()
        self.next_s = 0.0 if self.file or self.on_terminal else math.inf

    def show(self, done: int) -> None:
        """`done`: optimizer steps so far. Costs a clock read unless it is time to show something."""
        now = time.monotonic()
        if now < self.next_s:
            return
        self.next_s = now + _SHOW_EVERY_S
        if self.file:
            Path(self.file).write_text(f"{done} {self.total or 0}")
        else:
            print(f"\r\x1b[Kstep {done}" + (f" of {self.total}" if self.total else ""), end="", flush=True)

    def clear(self) -> None:
        """Wipe the terminal line, so that the next print starts on an empty one."""
        if self.on_terminal:
            print("\r\x1b[K", end="")


def weights_sha256(model: nn.Module) -> str:
    """A digest of all parameters in order: equal on two ranks only when their weights are bit-identical."""
    digest = hashlib.sha256()
    for parameter in unwrap(model).parameters():
        digest.update(whole(parameter.detach()).cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def compile_s() -> float | None:
    """Seconds spent in torch.compile (few where its cache had the code), None when nothing was compiled."""
    compile_times = getattr(sys.modules.get("torch._dynamo.utils"), "compile_times", None)
    if compile_times is None:
        return None
    spent = dict(zip(*compile_times(repr="csv", aggregate=True), strict=True))
    # The backward pass is compiled apart, when it first runs. All other entries lie within these two.
    parts = [spent[name] for name in ("_compile.compile_inner", "backward._backward_impl") if name in spent]
    return round(sum(map(float, parts)), 3) if parts else None


def write_json(value: Any, path: Path) -> None:
    """Strict JSON (NaN and infinities become null), written beside `path` and renamed: never half there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(_strict(value), allow_nan=False) + "\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _mean_over_ranks(value: float, device: torch.device) -> float:
    total = torch.tensor(value, dtype=torch.float64, device=device)
    if grouped():
        dist.all_reduce(total)
    return total.item() / world_size()


def _replicas(model: nn.Module | None) -> int:
    """Copies of the model within one process: more than 1 only for DataParallel over several GPUs."""
    return max(1, len(getattr(model, "device_ids", None) or [])) if isinstance(model, nn.DataParallel) else 1


def _batch_norms(model: nn.Module | None) -> list[str] | None:
    """The classes of batch norm in the model: they tell whether ranks normalise by their own images alone."""
    if model is None:
        return None
    found = (module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm))
    return sorted({type(module).__name__ for module in found})
