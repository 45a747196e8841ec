"""One name for one thing."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

import attnfuzz

# All sources are read.
pytestmark = pytest.mark.slow

PACKAGE = Path(attnfuzz.__file__).parent
TESTS = Path(__file__).parent
RIDDLES = re.compile(
    r"\b(?:what|who|whom|whoever|whence|nobodys?|somebodys?|told|heard|mend(?:s|ed|ing)?|lean(?:s|ed|ing)? to"
    r"|(?:not|never) met|all else|so many|said|nights?|comes? and goe?s?|whatever comes)\b"
)
"""Words that a reader has to decode. Name the thing instead, in the field's terms."""


def test_no_two_public_classes_share_a_name() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for folder in ("harness", "strategies", "reference", "kernels"):
        for path in (PACKAGE / folder).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    modules[node.name].append(str(path.relative_to(PACKAGE)))
    assert len(modules) > 300
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}


def test_names_of_tests_are_plain_statements() -> None:
    found = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(), re.MULTILINE)
        if RIDDLES.search(name.replace("_", " "))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", ["what_is_lost_is_said", "who_yields_gets_all", "a_page_of_nobody", "it_leans_to_a"])
def test_a_riddle_in_a_name_is_found(name: str) -> None:
    assert RIDDLES.search(name.replace("_", " "))
