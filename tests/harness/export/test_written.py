"""Scripts of writers: the functions that they include, and their comparison of caches."""

import ast
import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import attnfuzz.harness.export
from attnfuzz.harness.export import target
from attnfuzz.harness.export.python_source import inlined
from attnfuzz.kernels.cache_writes.native import NATIVE_WRITERS, NativeWriter

TEMPLATE = Path(attnfuzz.harness.export.__file__).parent / "caches.py.j2"


@pytest.mark.parametrize("writer", NATIVE_WRITERS, ids=lambda each: each.name)
def test_the_source_of_a_native_writer_has_all_functions_that_it_calls(writer: NativeWriter) -> None:
    text = inlined(target._MODULES, [writer.function.__name__], {"build.load()": "native()"})
    tree = ast.parse(text)
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert called - defined - set(dir(builtins)) == {"native"}


def compare_cache() -> Callable[..., bool]:
    """The function that scripts have."""
    space: dict[str, Any] = {"torch": torch}
    exec(TEMPLATE.read_text(), space)  # noqa: S102 - a template without variables
    found: Callable[..., bool] = space["compare_cache"]
    return found


@pytest.mark.parametrize(
    ("held", "low", "high", "wrong"),
    [
        (448.0, 448.0, float("nan"), False),
        (float("nan"), 448.0, float("nan"), False),
        (416.0, 448.0, float("nan"), True),
        (448.0, float("nan"), float("nan"), True),
    ],
)
def test_a_bound_of_nan_allows_nan_beside_the_other_bound(held: float, low: float, high: float, wrong: bool) -> None:
    before = torch.zeros(1, 2, 1, 1, dtype=torch.float8_e4m3fn)
    after = before.clone()
    after.view(torch.uint8)[0, 1] = torch.tensor(held).to(torch.float8_e4m3fn).view(torch.uint8)
    places = torch.tensor([[0], [1], [0], [0]])
    bounds = (torch.full((1, 1, 1), each).to(torch.float8_e4m3fn) for each in (low, high))
    free = torch.zeros(2, 0, dtype=torch.int64)
    assert compare_cache()("k_cache", before, after, places, *bounds, free) is wrong
