"""What a worker prints: its end is kept, and the rest costs no memory."""

import os

_KEPT = 4096
"""Bytes of the end."""

_CHUNK = 1 << 16
"""What a pipe holds, by default."""

_CHUNKS = 64
"""Most chunks to read at a time: a worker may never stop printing, and the parent has to check its deadline."""


class PrintedOutput:
    """A pipe that a worker prints into. It blocks while the pipe is full, so its parent drains it while it waits.

    `fd` is the end to wait on, `remote` the worker's.
    """

    def __init__(self) -> None:
        self.fd, self.remote = os.pipe()
        os.set_blocking(self.fd, False)
        self._end = b""

    def drain(self) -> bool:
        """Take what was printed. False once no process can print any more."""
        for _ in range(_CHUNKS):
            try:
                printed = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                return True
            if not printed:
                return False
            self._end = (self._end + printed)[-_KEPT:]
        return True

    def forget(self) -> None:
        """Take what was printed so far, and forget it."""
        self.drain()
        self._end = b""

    def words(self) -> str:
        """The end of what was printed."""
        self.drain()
        return self._end.decode(errors="replace").strip()

    def hand_over(self) -> None:
        """Close the worker's end, which is on its way to the worker."""
        os.close(self.remote)

    def close(self) -> None:
        """Close the parent's end. What is printed from now on is lost."""
        os.close(self.fd)
