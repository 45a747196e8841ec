"""The line of a backend's own code that an exception comes from."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attnfuzz.harness.inside.raised_at import raised_at, traceback_of
from attnfuzz.reference.dtypes import DType


def line_of(work: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any exception
        work()
    return raised_at(caught.value)


def names_no_page() -> None:
    dict[str, int]()["page"]


def in_torch() -> None:
    torch.zeros(2) @ torch.zeros(3)


def in_the_standard_library() -> None:
    json.loads("[")


def in_a_check_of_attnfuzz() -> None:
    DType.of(torch.complex64)


@pytest.mark.parametrize("work", [names_no_page, in_torch, in_the_standard_library])
def test_an_exception_comes_from_the_innermost_line_of_the_backend(
    work: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "__name__", "mine")

    def deeper() -> None:
        work()

    line = work.__code__.co_firstlineno + 1
    assert line_of(work) == line_of(deeper) == f"{Path(__file__).name}:{line}"


def test_a_check_of_ours_raises_for_many_reasons() -> None:
    assert line_of(in_a_check_of_attnfuzz) == ""


def test_a_file_of_a_package_has_the_package_before_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "__name__", "engine.layers.attention")
    assert line_of(names_no_page).startswith(f"engine/layers/{Path(__file__).name}:")
    monkeypatch.setitem(globals(), "__name__", 5)
    assert line_of(names_no_page)


def test_a_traceback_has_the_frames_from_the_backend_inwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "__name__", "mine")
    with pytest.raises(json.JSONDecodeError) as caught:
        in_the_standard_library()
    first, *inner = traceback_of(caught.value).splitlines()[-4:]
    line = in_the_standard_library.__code__.co_firstlineno + 1
    assert first == f'  {Path(__file__).name}:{line}, in in_the_standard_library: json.loads("[")'
    assert [each.partition(":")[0] for each in inner] == ["  __init__.py", "  json/decoder.py", "  json/decoder.py"]


def test_a_traceback_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "__name__", "mine")

    def deep(left: int) -> None:
        deep(left - 1) if left else names_no_page()

    with pytest.raises(KeyError) as caught:
        deep(50)
    lines = traceback_of(caught.value).splitlines()
    assert len(lines) == 9
    assert lines[0] == "  (45 frames before)"
    assert "in names_no_page" in lines[-1]
