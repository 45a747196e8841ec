"""Printing: escape sequences and markup in foreign text are printed as text; pipes get lines of any width."""

import os
from collections.abc import Iterable

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from attnfuzz.harness.verdict.printable import printable

_WIDTH_OF_A_PIPE = 1 << 16
"""So many columns that nothing is wrapped or cut: names in it are to be copied and searched for. COLUMNS changes it."""

_WIDTH_OF_A_RULE = 80


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


def rule_width(console: Console) -> int:
    """How long a line across is."""
    return min(console.width, _WIDTH_OF_A_RULE) if not console.is_terminal else console.width


def echo(message: str, *, err: bool = False) -> None:
    """Print lines as they are, but for what a terminal would obey."""
    click.echo(printable(message), err=err)
