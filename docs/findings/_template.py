"""The template of the scripts in this folder: their requirements, the lines that they print, and their exit codes.

A script exits with 1 if the bug shows, with 0 if it does not, and with 2 if it cannot run. `python _single_file.py
SCRIPT` prints a script as one file, to attach to a report.
"""

import contextlib
import os
import signal
import subprocess
import sys

_shown = []


@contextlib.contextmanager
def requirements(packages):
    """Exit with 2 if an import in this block fails, with the arguments of pip that install the packages."""
    try:
        yield
    except ImportError as error:
        print(f"{error}: pip install {packages}")
        sys.exit(2)


def require_gpu(*, hopper=False):
    """Exit with 2 without a GPU, or if `hopper`, without one of compute capability 9.x."""
    import torch  # noqa: PLC0415 - not every script needs it

    if not torch.cuda.is_available() or (hopper and torch.cuda.get_device_capability()[0] != 9):
        print("needs a Hopper GPU" if hopper else "needs a GPU")
        sys.exit(2)


def show(line, *, wrong=False):
    """Print a line of the result, and record whether it shows the bug."""
    print(line, flush=True)
    _shown.append(bool(wrong))


def finish(*, without_cleanup=False):
    """Exit with 1 if a line has shown the bug, with 0 otherwise. `without_cleanup` runs no exit handlers."""
    sys.stdout.flush()
    (os._exit if without_cleanup else sys.exit)(int(any(_shown)))


def in_child(*arguments):
    """Run this script again with these arguments. Return its result and its exit code, below 0 for a signal."""
    command = [sys.executable, sys.argv[0], *map(str, arguments)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    if child.returncode < 0:
        return f"death of {signal.Signals(-child.returncode).name}", child.returncode
    if child.returncode > 0:
        return f"an exception: {child.stderr.splitlines()[-1]}", child.returncode
    return (child.stdout.splitlines() or ["an answer"])[-1], 0
