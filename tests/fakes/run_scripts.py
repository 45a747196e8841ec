"""Stands for starting scripts: runs each in a fork of a process with slow imports done."""

import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_each(paths: Sequence[str]) -> None:
    """Run scripts, and print a line with its exit code after what each printed."""
    for path in paths:
        pid = os.fork()
        if not pid:
            ended = 99
            try:
                runpy.run_path(path, run_name="__main__")
            except SystemExit as stop:
                ended = int(stop.code or 0)
            finally:
                sys.stdout.flush()
                # An interpreter with torch takes longer to end than a script to run.
                os._exit(ended)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.stdout.write(f"== {path} {code}\n")
        sys.stdout.flush()


def outcomes(paths: Mapping[str, Path], printed: str) -> dict[str, tuple[int, str]]:
    """The exit code of each script, and what it printed, from what `run_each` printed."""
    found = {}
    for name, path in paths.items():
        output, _, printed = printed.partition(f"== {path} ")
        code, _, printed = printed.partition("\n")
        found[name] = int(code), output
    return found
