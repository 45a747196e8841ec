"""A job process, which runs slices from its standard input. Started as `python -m`."""

import gc
import os
import signal
import sys
from types import FrameType
from typing import BinaryIO

import msgspec

from attnfuzz.harness.search.messages import AnyMessage, DriverAwaited, JobSetup, MaySettle, Ready, Slice, Unable
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.workers import gpu_gone
from attnfuzz.harness.workers.forked import fork_ahead
from attnfuzz.harness.workers.gpu_gone import GpuGone
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case_types import decode_any
from attnfuzz.reference.user_error import UserError

_OBJECTS_BEFORE_COLLECTION = 10_000
"""Number of new objects after which young garbage is collected (default: 700 to 2,000)."""


class _Terminated(BaseException):
    """SIGTERM arrived. Not SystemExit, which Hypothesis would treat as a failure of the current case, and shrink."""

    came = False


def main() -> None:
    """Read a Setup and then slices from standard input until it ends. Writes messages to standard output."""
    fork_ahead()
    from attnfuzz.harness.campaign.scripts import hand_over  # noqa: PLC0415 - the nursery has no use for it
    from attnfuzz.harness.search.hunter import Hunter  # noqa: PLC0415 - likewise

    orders, replies = sys.stdin.buffer, _private_stdout()
    _obey_signals()

    def tell(message: AnyMessage) -> None:
        replies.write(msgspec.json.encode(message) + b"\n")
        replies.flush()

    def claim(fingerprint: Fingerprint) -> bool:
        tell(MaySettle(fingerprint=fingerprint))
        # Nothing is read when the main process has gone; the job ends with it.
        return msgspec.json.decode(orders.readline() or b"false", type=bool)

    setup = msgspec.json.decode(orders.readline(), type=JobSetup)
    sys.path[:] = setup.path or sys.path
    hunter: Hunter | None = None

    def last() -> AnyCase | None:
        return None if hunter is None else hunter.last_on_gpu

    gpu_gone.on_waiting = lambda seconds: tell(DriverAwaited(seconds=seconds, last=last()))
    try:
        with Hunter(setup, tell, hand_over, claim) as hunter:
            tell(Ready())
            collect_garbage_less()
            # A loop over the lines would read ahead, past the answers to claims.
            while line := orders.readline():
                tell(hunter.run(msgspec.json.decode(line, type=Slice, dec_hook=decode_any)))
    except UserError as error:
        tell(_unable(error, last()))
        sys.exit(1)


def _unable(error: UserError, last: AnyCase | None) -> Unable:
    """Return the message about an error. `last` is the case that ran last on a GPU, if any did."""
    if isinstance(error, GpuGone) and last is not None:
        return Unable(text=f"the GPU does not answer any more: {error.reason}", last=last)
    return Unable(text=str(error))


def collect_garbage_less() -> None:
    """Exclude the existing objects from garbage collection, and wait for more new ones.

    Hypothesis creates many objects: the collector took a fifth of drawing time, most of it for objects that stay.
    """
    gc.freeze()
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)


def _private_stdout() -> BinaryIO:
    """Reserve standard output for messages. Other output goes to standard error from now on."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def _obey_signals() -> None:
    for each in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(each, _leave)
    sys.unraisablehook = _come_again


def _leave(signum: int, _frame: FrameType | None) -> None:
    """Leave through the `with` blocks, so that the workers stop too."""
    _Terminated.came = True
    raise _Terminated(signum)


def _come_again(swallowed: "sys.UnraisableHookArgs") -> None:
    """Leave a little later if a callback swallowed it, as Hypothesis's does in each garbage collection."""
    if isinstance(swallowed.exc_value, _Terminated):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        sys.__unraisablehook__(swallowed)


def be_a_job() -> None:
    """Run this process's slices. Exit silently after SIGTERM."""
    try:
        main()
    except BaseException:
        # In the middle of a draw, Hypothesis raises FlakyStrategyDefinition instead of _Terminated.
        if not _Terminated.came:
            raise


if __name__ == "__main__":
    be_a_job()
