from pathlib import Path

import pytest

from bench.registry import RegistryError, find, variants


def own(folder: Path, text: str, name: str = "mine") -> Path:
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


def test_the_seven_methods_are_there_parents_first() -> None:
    names = list(variants())
    assert {"single", "single_amp", "dp", "ddp", "ddp_spawn", "ddp_amp", "ddp_syncbn"} <= set(names)
    for variant in variants().values():
        assert variant.parent is None or names.index(variant.parent) < names.index(variant.name)


def test_who_starts_the_ranks() -> None:
    assert {name: find(name).ranks for name in ("single", "ddp", "ddp_spawn")} == {
        "single": "one",
        "ddp": "launcher",
        "ddp_spawn": "itself",
    }


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("print()", "one"),
        ("import torch.distributed as dist\ndist.init_process_group()", "launcher"),
        ('"""Mine.\n\n    torchrun --nproc-per-node 2 mine.py\n"""', "launcher"),
        ('"""Mine.\n\nRanks: itself\n"""', "itself"),
        ('"""Mine.\n\ntorchrun is what others start it with.\n"""', "one"),
        ('"""Mine.\n\npython starts it.\n"""\ninit_process_group()', "launcher"),
    ],
)
def test_ranks_of_a_script_of_the_users(tmp_path: Path, text: str, ranks: str) -> None:
    assert find(str(own(tmp_path, text))).ranks == ranks


def test_a_script_named_like_one_of_ours_gets_another_name(tmp_path: Path) -> None:
    assert find(str(own(tmp_path, "", name="ddp"))).name == "own-ddp"


def test_ours_by_its_path_is_ours() -> None:
    assert find(str(find("ddp").path)).name == "ddp"


@pytest.mark.parametrize(
    ("text", "said"), [("def (", "cannot be read as Python"), ('"""A.\n\nRanks: many\n"""', "Ranks: many")]
)
def test_a_script_that_cannot_be_started_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RegistryError, match=said):
        find(str(own(tmp_path, text)))


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(RegistryError, match="one of single, "):
        find("dpp")
