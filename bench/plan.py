"""Which runs a command makes, in which order, settled before the first one starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.registry import RegistryError, Variant, find, variants

LAUNCHERS = ("torchrun", "launch", "spawn")
REFERENCE = "single"


class PlanError(Exception):
    """What was asked for cannot be run. One line, for the user."""


@dataclass(frozen=True)
class Job:
    """One run of one variant. `launcher` is one of LAUNCHERS, or "none" for a single process.

    `cfg`: what it trains, where that is not what its command trains throughout. `threads`: of each
    rank, where that is not its share of the cores.
    """

    variant: Variant
    world_size: int
    launcher: str
    repeat: int = 0
    order: int = 0
    cfg: Any = None
    threads: int | None = None


def select(names: Sequence[str]) -> list[tuple[Variant, bool]]:
    """The variants of these names and paths, each once, and whether it was named itself or meant by `all`."""
    chosen: dict[Variant, bool] = {}
    for name in names:
        try:
            if name == "all":
                for variant in variants().values():
                    if variant.kind == "method":
                        chosen.setdefault(variant, False)
            else:
                chosen[find(name)] = True
        except RegistryError as error:
            raise PlanError(str(error)) from None
    twice = {variant.name for variant in chosen if sum(v.name == variant.name for v in chosen) > 1}
    if twice:
        raise PlanError(
            f"two of the files are named {sorted(twice)[0]}: their results could not be told apart"
        )
    return list(chosen.items())


def launcher_of(variant: Variant, asked: str | None, named: bool) -> str:
    """How the variant is started when the user asked for `asked`; raises PlanError when it cannot be."""
    own = {"one": "none", "itself": "spawn", "launcher": "torchrun"}[variant.ranks]
    if asked is None or asked == own or variant.ranks == "one" or (variant.ranks == "itself" and not named):
        return own
    if variant.ranks == "itself":
        raise PlanError(
            f"{variant.name} starts its own ranks: --launcher {asked} does not go with it, spawn does"
        )
    return asked


def size_of(variant: Variant, world_size: int) -> int:
    """The ranks it runs on when the user wants `world_size`."""
    return 1 if variant.ranks == "one" else world_size


def one_rank_notes(
    chosen: Sequence[tuple[Variant, bool]], world_size: int | None, launcher: str | None
) -> list[str]:
    """A line for each variant named that runs one rank though the user asked for more, or for a launcher.

    Raises PlanError for a script of the user's that does not say itself who starts its ranks: ours was a
    guess.
    """
    asked = []
    if world_size is not None and world_size > 1:
        asked.append(f"--world-size {world_size}")
    if launcher is not None:
        asked.append(f"--launcher {launcher}")
    notes = []
    for variant, named in chosen:
        if not asked or not named or variant.ranks != "one":
            continue
        if variant.kind == "own" and not variant.states_ranks:
            raise PlanError(
                f"{variant.name} looks like a script of one process, so {asked[0]} does not go with it; "
                "state `Ranks: launcher` in its docstring if it wants ranks, else `Ranks: one`"
            )
        notes.append(f"{variant.name} runs as one process: {' and '.join(asked)} changes nothing for it")
    return notes


def check(chosen: Sequence[tuple[Variant, bool]], cfg: Any, world_size: int) -> None:
    """Raise PlanError when the flags do not fit one of the variants: nothing has been started yet."""
    for variant, named in chosen:
        problem = cfg.problem(size_of(variant, world_size))
        if named and cfg.opt_level != type(cfg).opt_level and "initialize_options" not in variant.source:
            problem = f"--opt-level is for the apex variants, {variant.name} has none"
        if problem:
            raise PlanError(problem)


def plan(
    chosen: Sequence[tuple[Variant, bool]], world_size: int, launcher: str | None, repeats: int
) -> list[Job]:
    """The runs in order: rounds A B C, then C B A, ..., so that a drift of the machine meets all alike."""
    first = sorted(chosen, key=lambda pair: pair[0].name != REFERENCE)  # the others are held against it
    jobs = []
    for repeat in range(repeats):
        for variant, named in first if repeat % 2 == 0 else reversed(first):
            job = Job(
                variant,
                size_of(variant, world_size),
                launcher_of(variant, launcher, named),
                repeat,
                len(jobs),
            )
            jobs.append(job)
    return jobs
