"""What a kernel may change in the process of its worker: put back after each case, so that the next one is right."""

import contextlib
import os
import resource
import signal
import sys

_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGPIPE,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGVTALRM,
    signal.SIGPROF,
)
"""Signals that may be handled in Python. Those of faults are set anew for each case."""

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

_LIMITS = (
    resource.RLIMIT_AS,
    resource.RLIMIT_DATA,
    resource.RLIMIT_STACK,
    resource.RLIMIT_CPU,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_NPROC,
)


class ProcessState:
    """The state of this process, whose stdout and stderr go to the descriptor `output`."""

    def __init__(self, output: int) -> None:
        self._output = output
        self._streams = sys.stdout, sys.stderr
        self._folder = os.open(".", os.O_PATH)
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._limits = {number: resource.getrlimit(number) for number in _LIMITS}

    def put_back(self) -> bool:
        """Undo what can be undone. False if something can't, so that the process is of no use any more."""
        try:
            self._put_back()
        except (OSError, ValueError):
            return False
        return not any(stream.closed for stream in self._streams)

    def flush(self) -> None:
        """Have what was printed reach the parent, unless it can't."""
        for stream in self._streams:
            # A kernel may have closed it, or what is below it.
            with contextlib.suppress(OSError, ValueError):
                stream.flush()

    def _put_back(self) -> None:
        for timer in _TIMERS:
            signal.setitimer(timer, 0)
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        sys.stdout, sys.stderr = self._streams
        for descriptor in (1, 2):
            os.dup2(self._output, descriptor)
        os.fchdir(self._folder)
        os.umask(self._umask)
        for limit, values in self._limits.items():
            if resource.getrlimit(limit) != values:
                resource.setrlimit(limit, values)
