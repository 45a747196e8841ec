"""Rewriting a ledger with the words that reports use now; comments and everything else stay."""

import re
from itertools import pairwise

from attnfuzz.harness.ledger.file import current_word

_HEADER = re.compile(r"^[ \t]*\[\[?[ \t]*(?P<name>[^\]\n]*?)[ \t]*\]", re.MULTILINE)
_FEATURES = re.compile(r"^[ \t]*features[ \t]*=[ \t]*\[[^\]]*\]", re.MULTILINE)
_WORD = re.compile(r"""(?P<quote>["'])(?P<word>[^"'\n]*)(?P=quote)""")


def rewritten(text: str) -> str:
    """Return a ledger's text with current words for the features that its [[known]] tables name."""
    starts = [0, *(match.start() for match in _HEADER.finditer(text)), len(text)]
    return "".join(_rewritten_part(text[start:end]) for start, end in pairwise(starts))


def _rewritten_part(part: str) -> str:
    """Return a table's text, which its header begins. Tables of servers have other features."""
    header = _HEADER.match(part)
    known = header is not None and header["name"] == "known"
    return _FEATURES.sub(lambda array: _WORD.sub(_current, array[0]), part) if known else part


def _current(quoted: re.Match[str]) -> str:
    word = current_word(quoted["word"])
    return quoted[0] if word == quoted["word"] else f'"{word}"'
