"""Runs the command line in this process."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import click
import pytest

from attnfuzz.harness.cli.main import main


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str


Attnfuzz = Callable[..., Ran]
"""What the fixture `attnfuzz` gives a test."""


def commands(group: click.Group, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands with their names, without the groups that they are in."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)
        else:
            yield (*names, name), command


def runs_commands(patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> Attnfuzz:
    """Run `attnfuzz ARGUMENTS` as often as the result is called."""

    def run(*arguments: str) -> Ran:
        patch.setattr("sys.argv", ["attnfuzz", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        written = capture.readouterr()
        return Ran(code=int(ended.value.code or 0), out=written.out, err=written.err)

    return run
