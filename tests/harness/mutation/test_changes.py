"""Mutants of a source file: which changes there are, and what a change does to the functions of a process."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from attnfuzz.harness.mutation.changes import Mutant, NoSuchChange, mutants_of
from attnfuzz.harness.mutation.lines import executed_lines
from attnfuzz.harness.mutation.swap import Swap

SOURCE = '''
import functools


def widths(lengths, page, most=8):
    """Return pages."""
    if not lengths or page < 1:
        raise ValueError(f"{page - 1} is no page")
    print(page + 1)
    pages = [-(-length // page) for length in lengths[:most]]
    return sized(
        max(pages),
        page,
        most=most,
    )


def sized(rows, width, *, most=4):
    return rows * width, most


def doubled(function):
    @functools.wraps(function)
    def twice(*args):
        return function(*args) + function(*args)

    return twice


@doubled
def first(lengths):
    return lengths[0] + 1
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "planner_to_change.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def module(file: Path) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("planner_to_change", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def changes(file: Path, line: int) -> set[tuple[str, str, str]]:
    found = (each.mutant for each in mutants_of(file))
    return {(each.operator, each.before, each.after) for each in found if each.line == line}


def mutant(file: Path, operator: str, before: str) -> Mutant:
    found = (each.mutant for each in mutants_of(file))
    return next(each for each in found if (each.operator, each.before) == (operator, before))


def test_each_kind_of_change_is_made(file: Path) -> None:
    assert {each.mutant.operator for each in mutants_of(file)} >= {
        "operator",
        "constant",
        "comparison",
        "condition",
        "slice bound",
        "slice bound dropped",
        "argument dropped",
        "arguments swapped",
        "name",
    }
    assert ("comparison", "page < 1", "page <= 1") in changes(file, 7)
    assert ("operator", "not lengths or page < 1", "not lengths and page < 1") in changes(file, 7)
    assert ("slice bound", ":most", ":most + 1") in changes(file, 10)
    assert ("argument dropped", "most=most", "") in changes(file, 11)


def test_text_defaults_and_decorators_are_not_changed(file: Path) -> None:
    assert not any(changes(file, line) for line in (5, 6, 8, 9, 18, 23))


def test_a_change_belongs_to_all_lines_of_its_statement(file: Path) -> None:
    (found,) = {each.lines for each in mutants_of(file) if each.mutant.line == 13}
    assert found == range(11, 16)
    assert {each.lines for each in mutants_of(file) if each.mutant.line == 7} == {range(7, 8)}


@pytest.mark.usefixtures("module")
def test_a_file_that_was_edited_has_no_such_change(file: Path) -> None:
    gone = mutant(file, "constant", "0")
    file.write_text("x = 1\n")
    with pytest.raises(NoSuchChange, match="it was edited since"), Swap(gone).made():
        pass
    file.write_text("def broken(:\n")
    with pytest.raises(NoSuchChange, match="can't be read as Python"):
        mutants_of(file)


def test_functions_are_changed_within_a_block_alone(module: ModuleType, file: Path) -> None:
    swap = Swap(mutant(file, "slice bound dropped", ":most"))
    assert module.widths([8, 16], 8, 1) == (8, 1)
    with swap.made():
        assert module.widths([8, 16], 8, 1) == (16, 1)
    with pytest.raises(ValueError, match="-1 is no page"), swap.made():
        module.widths([8], 0, 1)
    assert swap.applied
    assert module.widths([8, 16], 8, 1) == (8, 1)


def test_a_decorated_function_is_changed_for_its_callers(module: ModuleType, file: Path) -> None:
    with Swap(mutant(file, "operator", "lengths[0] + 1")).made():
        assert module.first([5]) == 8
    assert module.first([5]) == 12


def test_a_mutant_of_a_file_that_is_not_loaded_is_not_applied(file: Path) -> None:
    swap = Swap(mutant(file, "constant", "0"))
    with swap.made():
        pass
    assert not swap.applied


def test_lines_are_recorded_of_the_given_places_alone(module: ModuleType, file: Path) -> None:
    before = sys.gettrace()
    with executed_lines([str(file)]) as lines:
        module.first([5])
    with executed_lines([str(file)]) as again:
        module.first([5])
    assert sys.gettrace() is before
    assert lines == again == {str(file): {25, 32}}
    with executed_lines([f"{file.parent}/elsewhere/"]) as nothing:
        module.first([5])
    assert not nothing
