"""A job process: runs the slices that it is handed. Started as `python -m`, spoken to over pipes."""

import contextlib
import os
import signal
import sys
from types import FrameType
from typing import BinaryIO

import msgspec

from attnfuzz.harness.search.hunter import Hunter
from attnfuzz.harness.search.messages import AnyMessage, JobSetup, Slice
from attnfuzz.harness.workers.lifeline import CannotStart
from attnfuzz.harness.workers.pool import Refused


class _ToldToLeave(BaseException):
    """SIGTERM came. No SystemExit: Hypothesis would take that for a failure of the case at hand, and shrink it."""


def main() -> None:
    """Read a Setup and then slices from standard input until it ends; write messages to standard output."""
    orders, replies = sys.stdin.buffer, _private_stdout()
    signal.signal(signal.SIGTERM, _leave)

    def tell(message: AnyMessage) -> None:
        replies.write(msgspec.json.encode(message) + b"\n")
        replies.flush()

    setup = msgspec.json.decode(orders.readline(), type=JobSetup)
    with Hunter(setup, tell) as hunter:
        for line in orders:
            tell(hunter.run(msgspec.json.decode(line, type=Slice)))


def _private_stdout() -> BinaryIO:
    """Standard output for messages alone: what others print goes to standard error from now on."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def _leave(signum: int, _frame: FrameType | None) -> None:
    """Go out through the `with` blocks, so that the workers end too."""
    raise _ToldToLeave(signum)


if __name__ == "__main__":
    with contextlib.suppress(_ToldToLeave):
        try:
            main()
        except (CannotStart, Refused) as for_the_user:
            # The main process shows what is on standard error: here the one line says it all.
            sys.exit(str(for_the_user))
