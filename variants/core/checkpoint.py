"""Checkpoints: written by rank 0, atomically, in the same form by every variant."""

import hashlib
import os
import pickle
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .config import Config, fail, flag_name
from .ranks import agreed, gather, grouped, rank, unwrap, whole, world_size

FORMAT = 1
# What a resumed run may change: it goes on with the stored weights, whatever computes the next step.
_FREE = {"warmup_steps", "amp_dtype", "opt_level", "data_dir", "timeout"}
_FREE |= {spec.name for spec in fields(Config) if spec.metadata["output"]}


class Checkpoint:
    """What a run needs to go on where it stopped: the model and every `part` that has a state_dict.

    Without `--checkpoint-dir` both calls do nothing. Only tensors and plain values are stored, and loading
    is `weights_only`: a checkpoint cannot run code.

    The file looks the same whatever trains: sharded tensors are stored whole, states that are spread over the
    ranks are put together. Only where ranks hold different states of one part (the momentum of local SGD)
    does it keep one for each rank.
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
        network = unwrap(self.model).state_dict()
        for name in network:  # all ranks, as it may need their shards; in place: a state_dict has metadata
            network[name] = whole(network[name]).cpu()
        parts = {name: _collect(part) for name, part in self.parts.items()}
        if rank() == 0:
            state = {
                "format": FORMAT,
                "variant": _variant(),
                "epochs_done": epochs_done,
                "config": asdict(self.cfg),
                "random_states": random_states,
                "model": network,
                **parts,
            }
            _write_atomically(state, self.path)
        if grouped():
            dist.barrier()  # a rank that ran ahead and failed must not leave the others without a checkpoint

    def load(self) -> int:
        """Restore the last checkpoint when there is one; gives the number of epochs it has done, else 0."""
        if self.path is None:
            return 0
        there = self.path.exists()
        if not agreed(there):
            fail(f"{self.path} is there for some ranks only: --checkpoint-dir must be on a disk of all")
        if not there:
            return 0
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            if state["format"] != FORMAT:
                fail(f"{self.path} has format {state['format']}, this version reads {FORMAT}")
        except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError) as error:
            detail = (str(error).splitlines() or [type(error).__name__])[0]
            fail(f"{self.path} is damaged, or no checkpoint of this project: {detail}")
        self._check_config(state)
        network = unwrap(self.model)
        like = network.state_dict()
        for name, tensor in state["model"].items():
            state["model"][name] = _sharded_like(like.get(name), tensor)
        network.load_state_dict(state["model"])
        for name, part in self.parts.items():
            _load_part(name, part, self._own(state, state.get(name) or {}))
        states = state["random_states"]
        if rank() < len(states):  # with more ranks than before, the new ones keep their fresh seed
            _set_random_state(states[rank()])
        self.epochs_done = state["epochs_done"]
        return self.epochs_done

    def _own(self, stored: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        """This rank's state where the ranks had different ones, in a variant that goes on with that."""
        if "by_rank" not in state:
            return state
        states = state["by_rank"]
        # In any other variant different states would make the replicas drift apart.
        return states[rank() if stored["variant"] == _variant() and len(states) == world_size() else 0]

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


def _variant() -> str:
    return Path(sys.argv[0]).stem


def _collect(part: Any) -> dict[str, Any] | None:
    """The state of `part`, put together from all ranks. All ranks call it; what counts is rank 0's answer."""
    if hasattr(part, "consolidate_state_dict"):  # ZeroRedundancyOptimizer: each rank knows its share only
        part.consolidate_state_dict(to=0)
        return part.state_dict() if rank() == 0 else None
    state = _on_cpu(part.state_dict())
    if agreed(_digest(state)):
        return state
    return {"by_rank": gather(state)}


def _on_cpu(value: Any) -> Any:
    """A copy of the nested dicts and lists of `value`, with every tensor whole and on the CPU."""
    if isinstance(value, torch.Tensor):
        return whole(value.detach()).cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_cpu(item) for item in value)
    return value


def _digest(value: Any) -> str:
    """Equal for two states only when they are equal to the last bit."""
    if isinstance(value, torch.Tensor):
        return hashlib.sha256(value.contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest()
    if isinstance(value, dict):
        return f"{ {key: _digest(item) for key, item in value.items()} }"
    if isinstance(value, (list, tuple)):
        return f"{[_digest(item) for item in value]}"
    return repr(value)


def _sharded_like(like: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, cut up over the ranks as `like` is when that is sharded and of the same shape."""
    if not hasattr(like, "device_mesh") or like.shape != tensor.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor  # takes a while to import

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


def _load_part(name: str, part: Any, state: dict[str, Any]) -> None:
    if "param_groups" in state:
        parameters = [parameter for group in part.param_groups for parameter in group["params"]]
        for index, values in state["state"].items():
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    values[key] = _sharded_like(parameters[index], value)
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
