"""Exit codes and the error for bad input, the same for every command."""

import re
from enum import IntEnum

import click

from attnfuzz.harness.verdict.printable import printable, shortened

_LONGEST_WORD = 300
"""Characters of a path or a name that a message shows whole."""

_LONGEST_MESSAGE = 4000


class Exit(IntEnum):
    """What a command's exit code says. FAILED: the input is bad, or the harness itself failed."""

    CLEAN = 0
    FOUND = 1
    FAILED = 2
    INTERRUPTED = 130


class BadInput(click.ClickException):
    """One line that says what is wrong and what to do."""

    exit_code = Exit.FAILED


def legible(message: str) -> str:
    """A message for a terminal: bounded, and without escape sequences that it quotes from arguments or files."""
    return shortened(re.sub(rf"\S{{{_LONGEST_WORD + 1},}}", _abridged, printable(message)), _LONGEST_MESSAGE)


def _abridged(word: re.Match[str]) -> str:
    """The beginning of a long word, its end, and its length."""
    ends = _LONGEST_WORD // 3
    return f"{word[0][:ends]}[... {len(word[0]):,} characters ...]{word[0][-ends:]}"
