"""What is left of a worker that died."""

import signal

import msgspec

from attnfuzz.harness.workers import channel
from attnfuzz.harness.workers.journal import Fault
from attnfuzz.harness.workers.sticky import Sticky, sticky_of

KILLED = "killed by SIGKILL from outside, most likely out of memory"
"""The cause of a death that may not be the fault of what the worker ran."""


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's end during a request.

    Either `signal` killed it or it left by itself with `exit_code`. `hang`: it was killed because it did not reply
    within `seconds`; otherwise `seconds` is how long it lived on the request. `entry` is the last journal entry
    (empty: nothing was launched), `fault` what the signal handler noted, `output` the end of what it printed.
    `core_dump` is the file that the GPU's state was written to, if that was asked for. `misdeed` says what it did
    for which it was killed, "" if nothing. `recorder` says whether a handler for faults was installed.
    """

    signal: int | None
    exit_code: int | None
    hang: bool
    seconds: float
    fault: Fault | None
    entry: bytes
    output: str
    core_dump: str | None = None
    misdeed: str = ""
    recorder: bool = True

    @property
    def sticky(self) -> Sticky | None:
        """The error for which it left, if it left because its CUDA context was broken."""
        return sticky_of(self.exit_code)

    @property
    def killed_from_outside(self) -> bool:
        """Whether somebody else killed it: the kernel for want of memory, most likely."""
        return self.signal == signal.SIGKILL and not self.hang

    @property
    def untimed(self) -> bool:
        """Whether what led to it was seen later, so that it can't be said in which launch it was done."""
        return bool(self.misdeed) or self.exit_code == channel.LOST

    @property
    def cause(self) -> str:
        """How it ended, in words."""
        if self.misdeed:
            return self.misdeed
        if self.hang:
            return f"no reply within {self.seconds:g} s"
        if self.killed_from_outside:
            return KILLED
        if self.sticky is not None:
            return str(self.sticky)
        if self.exit_code == channel.LOST:
            return "it closed or replaced the descriptors that its worker answers with"
        if self.signal is None:
            return f"the process left with exit code {self.exit_code}"
        try:
            name = signal.Signals(self.signal).name
        except ValueError:
            name = f"signal {self.signal}"
        return f"killed by {name}"
