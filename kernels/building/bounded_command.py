"""Running a command whose end does not have to be awaited.

A process inside a driver that hangs can't be killed. `subprocess.run` waits for it even after its timeout.
"""

import contextlib
import subprocess
import tempfile
from collections.abc import Sequence

_SECONDS_TO_DIE = 1.0


class TooSlow(Exception):
    """The command did not end in time. It was killed, or left behind if that took too long."""


def output_of(command: Sequence[str], *, seconds: float, always: bool = False) -> str | None:
    """Return a command's standard output, or None if it fails. `always`: its standard error too, even if it fails.

    Raises:
        OSError: it can't be started.
        TooSlow: it did not end within `seconds`.
    """
    # A file, not a pipe: whatever the command started may keep a pipe open.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if always else subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired as late:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_DIE)
            raise TooSlow from late
        output.seek(0)
        text = output.read().decode(errors="replace")
    return text if always or status == 0 else None
