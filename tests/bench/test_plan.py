from pathlib import Path

import pytest

from bench.flags import Config
from bench.plan import PlanError, check, launcher_of, one_rank_notes, plan, select
from bench.registry import find


def order(*names: str, repeats: int) -> list[str]:
    return [job.variant.name for job in plan(select(names), 2, None, repeats)]


def test_repeats_go_to_and_fro() -> None:
    assert order("ddp", "dp", repeats=3) == ["ddp", "dp", "dp", "ddp", "ddp", "dp"]


def test_the_reference_goes_first() -> None:
    assert order("ddp", "single", repeats=2) == ["single", "ddp", "ddp", "single"]


def test_each_variant_once_however_often_it_was_named() -> None:
    assert order("ddp", "ddp", "all", repeats=1).count("ddp") == 1


def test_single_process_variants_run_one_rank() -> None:
    sizes = {job.variant.name: job.world_size for job in plan(select(["all"]), 4, None, 1)}
    assert sizes["single"] == sizes["dp"] == 1
    assert sizes["ddp"] == sizes["ddp_spawn"] == 4


@pytest.mark.parametrize(
    ("name", "asked", "launcher"),
    [
        ("single", None, "none"),
        ("single", "launch", "none"),
        ("ddp", None, "torchrun"),
        ("ddp", "launch", "launch"),
        ("ddp", "spawn", "spawn"),
        ("ddp_spawn", None, "spawn"),
        ("ddp_spawn", "spawn", "spawn"),
    ],
)
def test_what_starts_the_ranks(name: str, asked: str | None, launcher: str) -> None:
    assert launcher_of(find(name), asked, named=True) == launcher


def test_a_launcher_that_a_named_variant_cannot_have_is_refused() -> None:
    with pytest.raises(PlanError, match="ddp_spawn starts its own ranks"):
        launcher_of(find("ddp_spawn"), "torchrun", named=True)


def test_all_takes_a_launcher_where_it_can() -> None:
    launchers = {job.variant.name: job.launcher for job in plan(select(["all"]), 2, "launch", 1)}
    assert (launchers["ddp"], launchers["ddp_spawn"], launchers["single"]) == ("launch", "spawn", "none")


def test_flags_that_do_not_fit_the_ranks_are_refused() -> None:
    with pytest.raises(PlanError, match="does not divide by 3 ranks; the next that do: 126 and 129"):
        check([(find("ddp"), True)], Config(), 3)
    check([(find("single"), True)], Config(), 3)  # it runs one rank


@pytest.mark.parametrize("flags", [{"global_batch_size": 60_002}, {"train_images": 60_001}])
def test_more_images_than_there_are_are_refused(flags: dict) -> None:
    with pytest.raises(PlanError, match="60000"):
        check([(find("single"), True)], Config(**flags), 1)


def test_an_opt_level_is_refused_where_nothing_has_one() -> None:
    with pytest.raises(PlanError, match="--opt-level is for the apex variants, single has none"):
        check([(find("single"), True)], Config(opt_level="O2"), 1)
    check([(find("apex_amp"), True), (find("single"), False)], Config(opt_level="O2"), 1)


def test_two_scripts_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text("")
    with pytest.raises(PlanError, match="named mine"):
        select([str(tmp_path / "a/mine.py"), str(tmp_path / "b/mine.py")])


def test_a_broken_file_among_ours_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("def (")
    monkeypatch.setattr("bench.registry.VARIANTS_DIR", tmp_path)
    with pytest.raises(PlanError, match=r"broken\.py cannot be read as Python"):
        select(["all"])


@pytest.mark.parametrize(("world_size", "launcher"), [(2, None), (None, "torchrun")])
def test_ranks_for_a_variant_of_one_process_are_noted(world_size: int | None, launcher: str | None) -> None:
    (note,) = one_rank_notes(select(["single", "ddp"]), world_size, launcher)
    assert "single runs as one process" in note
    assert one_rank_notes(select(["all"]), world_size, launcher) == []


@pytest.mark.parametrize("world_size", [None, 1])
def test_one_rank_for_a_variant_of_one_process_needs_no_note(world_size: int | None) -> None:
    assert one_rank_notes(select(["single"]), world_size, None) == []


def test_ranks_for_a_script_that_does_not_say_it_wants_any_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import core")
    with pytest.raises(PlanError, match="state `Ranks: launcher` in its docstring"):
        one_rank_notes(select([str(path)]), 2, None)
    path.write_text('"""Mine.\n\nRanks: one\n"""')
    assert len(one_rank_notes(select([str(path)]), 2, None)) == 1
    path.write_text('"""Mine.\n\nRanks: launcher\n"""')
    assert one_rank_notes(select([str(path)]), 2, None) == []
