"""The words of code and docs: none that a reader has to decode, and hardly a "what" where a thing has a name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

# All sources are read.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]

RIDDLES = (
    r"told|heard|nobody|whoever|somebody|mend(?:s|ed|ing)?|lean(?:s|ed|ing)? to|(?:not|never) met|all else|so many"
    r"|says it all|whole state"
)
"""Words that read as translated: write "given", "no one", "fixed", "biased towards", "everything else", "n of them"."""

CEILINGS = {
    "harness": (0, 28),
    "kernels": (0, 0),
    "reference": (0, 0),
    "strategies": (0, 0),
    "benchmarks": (0, 0),
    "bugs": (0, 0),
    "scripts": (0, 0),
    "docs": (0, 3),
    "conftest.py": (0, 0),
    "Makefile": (0, 0),
    "pyproject.toml": (0, 0),
    ".github": (0, 0),
    "README.md": (0, 0),
    "ARCHITECTURE.md": (0, 0),
    "CHANGELOG.md": (0, 7),
    "CONTRIBUTING.md": (0, 24),
    "SECURITY.md": (0, 5),
}
"""How often the words above, and "what", may stand there, identifiers included. A number only ever goes down."""


_NO_VERBS = re.compile(r"all|another|each|for|how|further|it|like|no|none|one|there|those|three|when|where|whether|why")
_TITLES = {ROOT / "kernels" / "defects"}
"""The docstring of a defect is its title."""


@pytest.mark.parametrize("top", CEILINGS)
def test_words_need_no_decoding(top: str) -> None:
    riddles, whats = CEILINGS[top]
    found = _found(RIDDLES, top)
    assert len(found) <= riddles, "\n".join(found)
    found = _found("what", top)
    assert len(found) <= whats, "\n".join(found)


@pytest.mark.parametrize("top", ["harness", "kernels", "reference", "strategies", "benchmarks", "scripts"])
def test_docstrings_of_functions_begin_with_a_verb(top: str) -> None:
    """Ruff's D401 finds articles and verbs in the third person; this finds the rest, such as "Whether" and plurals."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in sorted((ROOT / top).rglob("*.py"))
        if path.parent not in _TITLES
        for line, word in _first_words(path.read_text())
        if not _may_be_a_verb(word)
    ]
    assert not found, "\n".join(found)


def test_first_words_that_are_no_verbs_are_found() -> None:
    source = """
def _a(): '''Whether it runs.'''
def _b(): '''Names of modules.'''
def _c(): '''Pass it on.'''
class D:
    @property
    def e(self): '''Whether it runs.'''
    async def f(self):
        '''No spans: it reads no keys.'''
"""
    found = [(line, word) for line, word in _first_words(source) if not _may_be_a_verb(word)]
    assert found == [(2, "Whether"), (3, "Names"), (9, "No")]


def test_a_phrase_is_found_across_lines_of_a_comment(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text("# A search leans\n# to these, and to all that was\n# never  met.\n")
    assert _found(RIDDLES, "", root=tmp_path) == ["some.py:1: leans to", "some.py:3: never met"]


def _first_words(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the first word of the docstrings of all functions that are no properties."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and not any("property" in ast.unparse(each) for each in node.decorator_list):
                yield node.body[0].lineno, text.split()[0].rstrip(".,:;")


def _may_be_a_verb(word: str) -> bool:
    return not _NO_VERBS.fullmatch(word.lower()) and (word.endswith("ss") or not word.endswith("s"))


def _found(words: str, top: str, root: Path = ROOT) -> list[str]:
    """PATH:LINE: WORDS of each place, by whole words."""
    pattern = re.compile(rf"\b(?:{words})\b".replace(" ", r"[\s#/*]+"), re.IGNORECASE)
    found = []
    for path in _files(root / top):
        text = path.read_text()
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            shown = " ".join(re.split(r"[\s#/*]+", match.group()))
            found.append(f"{path.relative_to(root)}:{line}: {shown}")
    return found


def _files(top: Path) -> list[Path]:
    if top.is_file():
        return [top]
    kinds = {".py", ".cpp", ".cu", ".h", ".j2", ".md", ".sh", ".yml", ".json" if top.name == "bugs" else ".py"}
    return sorted(path for path in top.rglob("*") if path.is_file() and path.suffix in kinds)
