"""One name for one thing."""

import ast
from collections import defaultdict
from pathlib import Path

import attnfuzz

PACKAGE = Path(attnfuzz.__file__).parent


def test_no_two_public_classes_share_a_name() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for folder in ("harness", "strategies", "reference", "kernels"):
        for path in (PACKAGE / folder).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    modules[node.name].append(str(path.relative_to(PACKAGE)))
    assert len(modules) > 300
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}
