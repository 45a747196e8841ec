"""Imports that import-linter can't see: names of own modules belong into the registry, not into `import_module`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import attnfuzz

# All sources are read.
pytestmark = pytest.mark.slow

PACKAGE = Path(attnfuzz.__file__).parent


def own_modules_imported_by_name(source: str) -> Iterator[str]:
    """Yield the names of own modules that a source passes to `import_module` or `__import__` as literal strings."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        function, named = node.func, node.args[0]
        called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if called in ("import_module", "__import__"):
            part = named.values[0] if isinstance(named, ast.JoinedStr) and named.values else named
            text = part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else ""
            if text.startswith(("attnfuzz", ".")):
                yield text


@pytest.mark.parametrize("folder", ["harness", "kernels", "reference", "strategies"])
def test_own_modules_are_imported_by_statements_or_by_the_registry(folder: str) -> None:
    paths = list((PACKAGE / folder).rglob("*.py"))
    assert paths
    found = {str(path): names for path in paths if (names := list(own_modules_imported_by_name(path.read_text())))}
    assert found == {}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('importlib.import_module("attnfuzz.kernels.vllm.session")', ["attnfuzz.kernels.vllm.session"]),
        ('import_module(f"attnfuzz.kernels.{name}")', ["attnfuzz.kernels."]),
        ('import_module(".session", __package__)', [".session"]),
        ('__import__("attnfuzz")', ["attnfuzz"]),
        ('import_module("flashinfer")', []),
        ("import_module(name)", []),
    ],
)
def test_literal_names_of_own_modules_are_found(source: str, names: list[str]) -> None:
    assert list(own_modules_imported_by_name(source)) == names
