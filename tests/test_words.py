"""The words of code and docs: none that a reader has to decode, and hardly a "what" where a thing has a name."""

import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("top", CEILINGS)
def test_words_need_no_decoding(top: str) -> None:
    riddles, whats = CEILINGS[top]
    found = _found(RIDDLES, top)
    assert len(found) <= riddles, "\n".join(found)
    found = _found("what", top)
    assert len(found) <= whats, "\n".join(found)


def test_a_phrase_is_found_across_lines_of_a_comment(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text("# A search leans\n# to these, and to all that was\n# never  met.\n")
    assert _found(RIDDLES, "", root=tmp_path) == ["some.py:1: leans to", "some.py:3: never met"]


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
