"""Output of every command: text that controls no terminal, tables, answers as JSON, error messages, and exit codes."""

import json
import os
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.verdict.printable import printable, shortened

JSON, QUIET, VERBOSE = (f"{__name__}.{name}" for name in ("json", "quiet", "verbose"))
"""Keys of these options in a command's context (`options.answer_options`)."""

STANDARD_OUTPUT = "-"

STARTING = "Starting: loading torch and the backends."
"""The first line of a command that runs cases: importing torch and starting workers takes seconds."""

_WIDTH_OF_A_PIPE = 1 << 16
"""Width of a pipe or a file in columns: nothing is wrapped or cut, so names can be copied. COLUMNS overrides it."""

_LONGEST_WORD = 300
"""Maximum length of a path or a name that a message shows in full."""

_LONGEST_MESSAGE = 4000


class Exit(IntEnum):
    """Exit codes. FAILED: the input is bad, or the harness itself failed. CLOSED: the reader closed the output."""

    CLEAN = 0
    FOUND = 1
    FAILED = 2
    INTERRUPTED = 130
    CLOSED = 141


class BadInput(click.ClickException):
    """A mistake of the user. The message is one line with the mistake and how to fix it."""

    exit_code = Exit.FAILED


def _asked(key: str) -> Any:
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(key)


def _json_on_stdout() -> bool:
    return str(_asked(JSON)) == STANDARD_OUTPUT


class Terminal(Console):
    """A console that is safe for untrusted text: markup is not interpreted, and control characters are replaced.

    If standard output is for JSON, text goes to standard error.
    """

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        stderr = stderr or _json_on_stdout()
        super().__init__(stderr=stderr, quiet=quiet, highlight=False, markup=False, emoji=False)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = _WIDTH_OF_A_PIPE

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield segments of printable text; rich's own control segments are unchanged."""
        rendered = super().render(renderable, options)
        for segment in rendered if self.is_terminal else _without_padding(rendered):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError. rich would exit with 1, which means that something was found."""
        raise BrokenPipeError


def _without_padding(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Strip spaces at the ends of lines: a wide table in a file would show as lines of spaces on a screen."""
    spaces: list[Segment] = []
    for segment in segments:
        text = segment.text.rstrip(" ")
        if text or segment.control:
            if not text.startswith("\n"):
                yield from spaces
            spaces.clear()
            yield segment._replace(text=text)
        if len(text) < len(segment.text):
            spaces.append(segment._replace(text=segment.text[len(text) :], control=None))
    yield from spaces


def details() -> Terminal:
    """Return a console for everything but the result: --quiet silences it."""
    return Terminal(quiet=is_quiet())


def extras() -> Terminal:
    """Return a console for text that only --verbose prints."""
    return Terminal(quiet=not is_verbose())


def is_quiet() -> bool:
    """Return whether --quiet was given: only the result is printed."""
    return bool(_asked(QUIET))


def is_verbose() -> bool:
    """Return whether --verbose was given."""
    return bool(_asked(VERBOSE))


def answer(found: msgspec.Struct) -> None:
    """Write a command's answer as JSON, if --json asks for it. Raises OSError."""
    path = _asked(JSON)
    if path is None:
        return
    # In ASCII, because JSON does not escape the characters that reorder text on a terminal.
    text = json.dumps(msgspec.json.decode(msgspec.json.encode(found)), indent=2)
    if str(path) == STANDARD_OUTPUT:
        click.echo(text)
    else:
        Path(path).write_text(f"{text}\n")


def echo(message: str, *, err: bool = False) -> None:
    """Print lines with control characters replaced."""
    console = Terminal(stderr=err)
    click.echo(_between_words(printable(message), console), err=err or _json_on_stdout())


def tell(message: str) -> None:
    """Report progress on standard error, unless --quiet is given."""
    if not is_quiet():
        warn(message)


def warn(message: str) -> None:
    """Print a warning or an error on standard error."""
    echo(message, err=True)


def print_sentences(console: Console, text: str, style: str = "") -> None:
    """Print text with lines that end between words. A name that is longer than a line stays whole."""
    console.print(Text(_between_words(printable(text), console), style=style), soft_wrap=True)


def _between_words(text: str, console: Console) -> str:
    """Return text with lines for a terminal, but for those with a command, which may be copied."""
    if not console.is_terminal:
        return text
    return "\n".join(
        line
        if "attnfuzz " in line
        else textwrap.fill(
            line, console.width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
        )
        for line in text.split("\n")
    )


def print_line(console: Console, text: str = "", style: str = "") -> None:
    """Print text without wrapping it: it may be copied, and terminals wrap themselves."""
    console.print(Text(printable(text), style=style), soft_wrap=True)


def new_table(*titles: str, whole: Collection[str] = (), numbers: Collection[str] = ()) -> Table:
    """Return an empty table without rules. Columns fold, except those in `whole` and right-aligned `numbers`."""
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
    """Return a message for a terminal: bounded, and without escape sequences quoted from arguments or files."""
    return shortened(re.sub(rf"\S{{{_LONGEST_WORD + 1},}}", _abridged, printable(message)), _LONGEST_MESSAGE)


def _abridged(word: re.Match[str]) -> str:
    """Return the beginning of a long word, its end, and its length."""
    ends = _LONGEST_WORD // 3
    return f"{word[0][:ends]}[... {len(word[0]):,} characters ...]{word[0][-ends:]}"
