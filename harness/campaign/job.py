"""A job process: runs slices from its standard input. Started as `python -m`."""

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


class _Terminated(BaseException):
    """SIGTERM came. Not SystemExit: Hypothesis would take that for a failure of the current case, and shrink it."""


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
    """Reserve standard output for messages: other output goes to standard error from now on."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def _leave(signum: int, _frame: FrameType | None) -> None:
    """Leave through the `with` blocks, so that the workers end too."""
    raise _Terminated(signum)


if __name__ == "__main__":
    with contextlib.suppress(_Terminated):
        try:
            main()
        except (CannotStart, Refused) as for_the_user:
            # The main process shows standard error: one line suffices here.
            sys.exit(str(for_the_user))
