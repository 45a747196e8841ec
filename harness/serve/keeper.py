"""A command whose processes end with attnfuzz, even if attnfuzz is killed.

Run by its path, without attnfuzz: `python -I -S keeper.py DESCRIPTOR SECONDS COMMAND...`, as the leader of a session. A
process that dies with its parent (workers/tethered.py) would leave the processes behind that it started itself, and a
server has several. So a keeper is forked before the command runs. It reads from a pipe, the other end of which attnfuzz
holds: a byte releases it; the end of the pipe is the end of attnfuzz, and the keeper ends the group of the command.
"""

import os
import signal
import sys
import time

_SECONDS_BETWEEN_LOOKS = 0.05


def main() -> None:
    """Fork the keeper, and become the command."""
    descriptor, seconds, *command = sys.argv[1:]
    line, group = int(descriptor), os.getpid()
    os.set_inheritable(line, False)
    # Forked twice: the command would not expect a child that it did not start.
    child = os.fork()
    if child == 0:
        # Signals to the group of the command must not reach the keeper.
        os.setsid()
        if os.fork() == 0:
            _keep(line, group, float(seconds))
        os._exit(0)
    os.waitpid(child, 0)
    # Python ignores these, and an ignored signal stays ignored in the command.
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - without a shell, as it is meant to run
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


def _keep(line: int, group: int, seconds: float) -> None:
    """Wait for a byte or the end of the pipe; at its end, end the group: politely, then by force."""
    if os.read(line, 1):
        return
    for signum in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + seconds
        try:
            os.killpg(group, signum)
            while time.monotonic() < until:
                os.killpg(group, 0)
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        except ProcessLookupError:
            return


if __name__ == "__main__":
    main()
