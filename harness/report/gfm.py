"""GitHub's markdown: foreign text in it, which must neither break it nor call anybody, and the templates made of it."""

import re
from functools import cache

import jinja2

from attnfuzz.harness.files.templates import environment_of
from attnfuzz.harness.verdict.printable import printable, shortened
from attnfuzz.harness.verdict.wording import clock, count, headline, replay_line

MOST_CHARACTERS = 300
"""Of one message or name inside a line; a report is longer."""

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$!&])")
_BACKTICKS = re.compile(r"`+")


def one_line(text: str) -> str:
    """`text` fit to print, and cut with an ellipsis where it is too long."""
    line = " ".join(printable(text).split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"


def escape(text: str) -> str:
    """One line of plain text that says `text`, whatever is in it."""
    return _SPECIAL.sub(r"\\\1", one_line(text))


def code(text: str) -> str:
    """`text` as a code span on one line, which may stand in a table too: GitHub mentions nobody from inside of one."""
    line = one_line(text) or " "
    fence = "`" * (_longest_run(line) + 1)
    space = " " if line[0] in "` " or line[-1] in "` " else ""
    # Tables end a cell at any bar without a backslash, also inside of code, and take the backslash away.
    return f"{fence}{space}{line}{space}{fence}".replace("|", "\\|")


def fenced(text: str, language: str = "", most: int = 100_000) -> str:
    """`text`, or its first `most` characters, as a block of code."""
    text = shortened(printable(text), most)
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


@cache
def template(name: str) -> jinja2.Template:
    """The markdown template of this name beside this module."""
    # Markdown's own escapes are the filters below.
    environment = environment_of("attnfuzz.harness.report", autoescape=False, keep_trailing_newline=True)
    environment.filters.update(
        clock=clock, code=code, count=count, escape=escape, fenced=fenced, one_line=one_line, replay_line=replay_line
    )
    environment.globals.update(headline=headline)
    return environment.get_template(name)


def _longest_run(text: str) -> int:
    return max(map(len, _BACKTICKS.findall(text)), default=0)
