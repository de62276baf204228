"""The flags that every variant shares, defined once.

This file imports the standard library alone: the harness reads the flags from here without paying for
`import torch`.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

TRAINING_SET = 60_000
"""Images in the training set of MNIST, and of the other data sets, which keep its shape."""


def fail(message: str) -> NoReturn:
    """End this process for a mistake of the user's: one line on stderr, exit code 2.

    Under torchrun every rank finds the same mistake; the first rank of each machine alone says it.
    """
    _end("error", message, 2)


def unavailable(message: str) -> NoReturn:
    """End this process as the technique cannot run on this machine: one line, exit code 69, a skipped row."""
    _end("unavailable", message, 69)


def _end(kind: str, message: str, exit_code: int) -> NoReturn:
    launched = "TORCHELASTIC_RUN_ID" in os.environ  # a LOCAL_RANK of something else must not silence us
    if launched and os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(5)  # torchrun ends all ranks once one ends: the one that speaks must be the first
    else:
        print(f"{Path(sys.argv[0]).name}: {kind}: {' '.join(message.split())}", file=sys.stderr, flush=True)
    sys.exit(exit_code)


def whole(minimum: int) -> Callable[[str], int]:
    """A parser of integers >= `minimum`; raises ValueError with what is allowed."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"takes a whole number, got {text!r}") from None
        if not minimum <= value < 2**63:
            raise ValueError(f"takes a whole number from {minimum} up, got {text!r}")
        return value

    return parse


def real(low: float, high: float = math.inf, *, low_allowed: bool = False) -> Callable[[str], float]:
    """A parser of finite numbers between `low` and `high`; raises ValueError with what is allowed."""
    allowed = f"{'from' if low_allowed else 'above'} {low:g}" + (
        "" if high == math.inf else f" and below {high:g}"
    )

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"takes a number {allowed}, got {text!r}") from None
        if not (low <= value < high) or (value == low and not low_allowed):
            raise ValueError(f"takes a number {allowed}, got {text!r}")
        return value

    return parse


def network(text: str) -> str:
    """A parser of `--model`: a name of ours or `package.module:Class`."""
    module, colon, name = text.partition(":")
    if text in ("convnet", "mlp"):
        return text
    if colon and name.isidentifier() and all(part.isidentifier() for part in module.split(".")):
        return text
    raise ValueError(f"takes convnet, mlp or package.module:Class, got {text!r}")


def opt_level(text: str) -> str:
    """A parser of apex's opt levels."""
    if text in ("O0", "O1", "O2", "O3"):
        return text
    hint = ": the letter O, not the digit zero" if text[:1] == "0" else ""
    raise ValueError(f"takes one of O0, O1, O2, O3; got {text!r}{hint}")


def one_of(*allowed: str) -> Callable[[str], str]:
    """A parser of one of the `allowed` words."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"takes one of {', '.join(allowed)}; got {text!r}")
        return text

    return parse


def flag(default: Any, parse: Callable[[str], Any], metavar: str, text: str, *, output: bool = False) -> Any:
    """A field of `Config` that is also a flag. An `output` says where to write, not what to train."""
    return field(
        default=default, metadata={"parse": parse, "metavar": metavar, "help": text, "output": output}
    )


@dataclass(frozen=True)
class Config:
    """One training job. Every variant takes exactly these flags."""

    epochs: int = flag(1, whole(1), "N", "passes over the training set")
    global_batch_size: int = flag(128, whole(1), "N", "images per optimizer step over all ranks together")
    lr: float = flag(0.02, real(0), "X", "learning rate (the peak under --lr-schedule onecycle)")
    momentum: float = flag(0.9, real(0, 1, low_allowed=True), "X", "momentum of SGD")
    lr_schedule: str = flag(
        "onecycle", one_of("constant", "onecycle"), "constant|onecycle", "the learning rate over the run"
    )
    warmup_steps: int = flag(20, whole(0), "N", "leading steps that are trained but not timed")
    seed: int = flag(0, whole(0), "N", "seeds the weights and the order of the images")
    train_images: int | None = flag(
        None, whole(1), "N", "train on the first N images only (all when left out)"
    )
    model: str = flag(
        "convnet", network, "convnet|mlp|package.module:Class", "the network; a class of yours works too"
    )
    norm: str = flag("batch", one_of("batch", "none"), "batch|none", "batch norm in the ConvNet, or none")
    dtype: str = flag(
        "float32",
        one_of("float32", "float64"),
        "float32|float64",
        "of weights and images; float64 is for parity proofs",
    )
    amp_dtype: str = flag(
        "auto",
        one_of("auto", "bfloat16", "float16"),
        "auto|bfloat16|float16",
        "of mixed precision, where used; auto is bfloat16 where the hardware has it, else float16",
    )
    opt_level: str = flag("O1", opt_level, "O0|O1|O2|O3", "of apex amp, in the apex variants alone")
    dataset: str = flag(
        "mnist",
        one_of("mnist", "fashion_mnist", "kmnist"),
        "mnist|fashion_mnist|kmnist",
        "mnist comes with the project, the others are downloaded once",
    )
    data_dir: str | None = flag(None, str, "DIR", "a torchvision root to read the data set from")
    timeout: float = flag(
        120.0, real(0, 86400), "SECONDS", "a collective that waits longer than this fails the run"
    )
    record: str | None = flag(None, str, "PATH", "write the raw record (JSON) there", output=True)
    checkpoint_dir: str | None = flag(
        None, str, "DIR", "save a checkpoint there after each epoch, and resume from it", output=True
    )
    tensorboard: str | None = flag(None, str, "DIR", "write TensorBoard scalars there", output=True)

    @classmethod
    def from_cli(cls, argv: list[str] | None = None) -> "Config":
        """The flags of `argv`, or of the command line; a wrong one ends the process with exit code 2."""
        docstring = sys.modules["__main__"].__doc__ or ""  # of the variant that runs: it says the technique
        parser = _OneLineParser(description=docstring.partition("\n")[0], allow_abbrev=False)
        for spec in fields(cls):
            parser.add_argument(
                flag_name(spec),
                type=_argparse_type(spec.metadata["parse"]),
                default=spec.default,
                metavar=spec.metadata["metavar"],
                help=spec.metadata["help"] + ("" if spec.default is None else f" (default: {spec.default})"),
            )
        # torch.distributed.launch passes this one; the rank is read from the environment all the same.
        parser.add_argument("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)
        given = vars(parser.parse_args(argv))
        del given["local_rank"]
        cfg = cls(**given)
        cfg.check(int(os.environ.get("WORLD_SIZE", "1")))
        return cfg

    def check(self, world_size: int) -> None:
        """End the process (exit code 2) when the flags do not fit together or not with `world_size` ranks."""
        problem = self.problem(world_size)
        if problem:
            fail(problem)

    def problem(self, world_size: int) -> str | None:
        """What is wrong with these flags for `world_size` ranks, in one line; None when nothing is."""
        if self.global_batch_size % world_size:
            return (
                f"--global-batch-size {self.global_batch_size} does not divide by {world_size} ranks; the "
                f"next that do: {_multiples_around(self.global_batch_size, world_size)}"
            )
        images = self.train_images or TRAINING_SET
        if images > TRAINING_SET:
            return f"--train-images takes a whole number from 1 to {TRAINING_SET}, got {images}"
        if self.global_batch_size > images:
            asked = f"{images} images" if self.train_images is None else f"--train-images {images}"
            return f"--global-batch-size {self.global_batch_size} is larger than the training set of {asked}"
        return None


def flag_name(spec: Field) -> str:
    """The command-line spelling of a `Config` field."""
    return "--" + spec.name.replace("_", "-")


def _multiples_around(number: int, step: int) -> str:
    below = number - number % step
    return f"{below} and {below + step}" if below else str(step)


def _argparse_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


class _OneLineParser(argparse.ArgumentParser):
    """argparse without the usage block in front of its errors."""

    def error(self, message: str) -> NoReturn:
        fail(f"{message} (--help lists the flags)")
