"""Exit codes and the error for bad input, the same for every command."""

from enum import IntEnum

import click


class Exit(IntEnum):
    """What a command's exit code says. FAILED: the input is bad, or the harness itself failed."""

    CLEAN = 0
    FOUND = 1
    FAILED = 2
    INTERRUPTED = 130


class BadInput(click.ClickException):
    """One line that says what is wrong and what to do."""

    exit_code = Exit.FAILED
