"""What every variant promises: its docstring, its main, the two calls, and how little it changes."""

import ast
import shlex

import pytest

from bench.diff import changed_lines
from bench.registry import variants

METHODS = {name: variant for name, variant in variants().items() if variant.kind == "method"}

# Lines that a technique may cost against its parent, comments and docstrings left out. Nobody is exempt.
BUDGETS = {
    "single": 0,
    "single_amp": 12,
    "dp": 2,
    "ddp": 25,
    "ddp_spawn": 14,
    "ddp_amp": 12,
    "ddp_syncbn": 2,
    "single_channels_last": 2,
    "single_compile": 1,
    "ddp_by_hand": 20,
    "ddp_accum": 12,
    "ddp_compile": 1,
    "ddp_compress": 2,
    "ddp_powersgd": 6,
    "ddp_local_sgd": 13,
    "zero1": 2,
    "fsdp": 8,
    "fsdp_amp": 14,
    "accelerate_ddp": 20,
    "apex_amp": 9,
    "apex_ddp": 4,
    "apex_ddp_syncbn": 10,
}


@pytest.mark.parametrize("name", METHODS)
def test_a_variant_differs_from_its_parent_by_its_technique_alone(name):
    variant = METHODS[name]
    if name == "single":
        assert variant.parent is None
        return
    assert changed_lines(variant.path, METHODS[variant.parent].path) <= BUDGETS[name]


def test_every_variant_has_a_budget_and_every_budget_a_variant():
    assert set(BUDGETS) == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_the_docstring_says_the_technique_in_a_sentence_and_how_to_launch_this_file(name):
    variant = METHODS[name]
    assert variant.summary.endswith(".")
    assert variant.summary.count(". ") == 0
    words = shlex.split(variant.command)
    assert f"variants/{name}.py" in words
    assert words[0] == ("torchrun" if variant.ranks == "launcher" else "python")


@pytest.mark.parametrize("name", METHODS)
def test_the_two_calls_and_main_are_there(name):
    source = METHODS[name].path.read_text()
    tree = ast.parse(source)
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert calls.count("log.step") == calls.count("log.epoch") == 1
    (main,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"]
    assert [argument.arg for argument in main.args.args] == ["cfg"]
    assert source.rstrip().endswith('if __name__ == "__main__":\n    run(main)')
