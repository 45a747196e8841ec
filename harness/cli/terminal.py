"""What every command says: text that a terminal does not obey, tables, error messages, and exit codes."""

import os
import re
from collections.abc import Collection, Iterable
from enum import IntEnum

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.verdict.printable import printable, shortened

_WIDTH_OF_A_PIPE = 1 << 16
"""So many columns that nothing is wrapped or cut: names in it are to be copied and searched for. COLUMNS changes it."""

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


class Terminal(Console):
    """A console on which foreign text can't do anything: no markup is read, and control characters are replaced."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = _WIDTH_OF_A_PIPE

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is printed, in segments; those that rich itself controls the terminal with are left alone."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


def echo(message: str, *, err: bool = False) -> None:
    """Print lines as they are, but for what a terminal would obey."""
    click.echo(printable(message), err=err)


def tell(message: str) -> None:
    """Report progress on standard error, so that standard output holds results alone."""
    echo(message, err=True)


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print text that is never wrapped: it is to be copied, and terminals wrap by themselves."""
    console.print(Text(printable(text), style=style), soft_wrap=True)


def new_table(*titles: str, whole: Collection[str] = (), numbers: Collection[str] = ()) -> Table:
    """An empty table without rules. Columns fold, but not those that are shown `whole`, nor right-aligned `numbers`."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in titles:
        if title in numbers:
            made.add_column(title, justify="right", no_wrap=True)
        elif title in whole:
            made.add_column(title, no_wrap=True)
        else:
            made.add_column(title, overflow="fold")
    return made


def legible(message: str) -> str:
    """A message for a terminal: bounded, and without escape sequences that it quotes from arguments or files."""
    return shortened(re.sub(rf"\S{{{_LONGEST_WORD + 1},}}", _abridged, printable(message)), _LONGEST_MESSAGE)


def _abridged(word: re.Match[str]) -> str:
    """The beginning of a long word, its end, and its length."""
    ends = _LONGEST_WORD // 3
    return f"{word[0][:ends]}[... {len(word[0]):,} characters ...]{word[0][-ends:]}"
