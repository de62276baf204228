"""Checkpoints: written by rank 0, atomically, in the same form by every variant."""

import os
import pickle
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .config import Config, fail, flag_name
from .ranks import gather, grouped, rank, unwrap

FORMAT = 1
# What a resumed run may change without becoming another training.
_FREE = {"warmup_steps", "amp_dtype", "data_dir", "timeout", "record", "checkpoint_dir", "tensorboard"}


class Checkpoint:
    """What a run needs to go on where it stopped: the model and every `part` that has a state_dict.

    Without `--checkpoint-dir` both calls do nothing. Only tensors and plain values are stored, and loading
    is `weights_only`: a checkpoint cannot run code.
    """

    def __init__(self, cfg: Config, model: nn.Module, **parts: Any) -> None:
        self.cfg, self.model, self.parts = cfg, model, parts
        self.path = Path(cfg.checkpoint_dir, "checkpoint.pt") if cfg.checkpoint_dir else None
        self.epochs_done = 0

    def save(self, epochs_done: int) -> None:
        """Store the state after `epochs_done` epochs. All ranks call this; rank 0 writes, the others wait."""
        if self.path is None:
            return
        random_states = gather(_random_state())
        if rank() == 0:
            state = {
                "format": FORMAT,
                "epochs_done": epochs_done,
                "config": asdict(self.cfg),
                "random_states": random_states,
                "model": unwrap(self.model).state_dict(),
                **{name: part.state_dict() for name, part in self.parts.items()},
            }
            _write_atomically(state, self.path)
        if grouped():
            dist.barrier()  # a rank that ran ahead and failed must not leave the others without a checkpoint

    def load(self) -> int:
        """Restore the last checkpoint when there is one; gives the number of epochs it has done, else 0."""
        if self.path is None or not self.path.exists():
            return 0
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            if state["format"] != FORMAT:
                fail(f"{self.path} has format {state['format']}, this version reads {FORMAT}")
        except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError) as error:
            detail = (str(error).splitlines() or [type(error).__name__])[0]
            fail(f"{self.path} is damaged, or no checkpoint of this project: {detail}")
        self._check_config(state)
        unwrap(self.model).load_state_dict(state["model"])
        for name, part in self.parts.items():
            _load_part(name, part, state.get(name) or {})
        states = state["random_states"]
        if rank() < len(states):  # with more ranks than before, the new ones keep their fresh seed
            _set_random_state(states[rank()])
        self.epochs_done = state["epochs_done"]
        return self.epochs_done

    def _check_config(self, state: dict[str, Any]) -> None:
        """Fail when the stored run was another training: its state would silently override the flags."""
        then, now = state["config"], asdict(self.cfg)
        free = _FREE if self.cfg.lr_schedule == "onecycle" else _FREE | {"epochs"}
        for spec in fields(self.cfg):
            if spec.name not in free and then.get(spec.name) != now[spec.name]:
                fail(
                    f"{self.path} is of a run with {flag_name(spec)} {then.get(spec.name)}, this one has "
                    f"{now[spec.name]}: use the same flags or another --checkpoint-dir"
                )
        if state["epochs_done"] >= self.cfg.epochs:
            raise_epochs = "" if self.cfg.lr_schedule == "onecycle" else "raise --epochs to train on, or "
            fail(
                f"{self.path} has all {self.cfg.epochs} of its --epochs: {raise_epochs}"
                "use another --checkpoint-dir"
            )


def _load_part(name: str, part: Any, state: dict[str, Any]) -> None:
    if not state and part.state_dict():
        # A checkpoint of a run without this part: the scaler, say, when a float32 run goes on in float16.
        if rank() == 0:
            print(f"the checkpoint holds no {name} state: the {name} starts afresh", flush=True)
        return
    part.load_state_dict(state)


def _random_state() -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _write_atomically(state: dict[str, Any], path: Path) -> None:
    """Write beside `path` and rename: a run killed half-way leaves the old file, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
