"""Checks of the message with which a command refuses an impossible request."""

from command_line import Ran

from attnfuzz.harness.cli.terminal import STARTING


def refused(ran: Ran, *words: str, sent_before: tuple[str, ...] = ()) -> None:
    """The command ended with 2, one line of error, and these words in it.

    Before it come click's usage, the line of a command that starts, and lines that begin with one of `sent_before`,
    but nothing else.
    """
    assert ran.code == 2
    assert "Traceback" not in ran.err
    *before, last = ran.err.strip().splitlines()
    assert last.startswith("Error: ")
    assert all(line.startswith(("Usage:", "Try", "  ", STARTING, *sent_before)) or not line for line in before)
    assert [word for word in words if word not in last] == []
