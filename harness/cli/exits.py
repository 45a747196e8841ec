"""Exit codes and the error for bad input, the same for every command."""

from enum import IntEnum

import click

from attnfuzz.harness.report.printable import printable


class Exit(IntEnum):
    """What a command's exit code says. FAILED: the input is bad, or the harness itself failed."""

    CLEAN = 0
    FOUND = 1
    FAILED = 2
    INTERRUPTED = 130


class BadInput(click.ClickException):
    """One line that says what is wrong and what to do."""

    exit_code = Exit.FAILED

    def format_message(self) -> str:
        """The line, without what a terminal would obey: it may quote a file of somebody else's."""
        return printable(self.message)
