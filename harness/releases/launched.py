"""Runs a script with a site's modules, in its own process, and records the file of each import.

It is run as a file, `python launched.py PARENT SCRIPT RECORD SITE MODULE ...`, and ends with the process PARENT. It
imports only the standard library, leaving the rest to the site and the script. RECORD gets a line of JSON, [module,
file], when a module is found, so that it survives the process's death.
"""

import contextlib
import ctypes
import json
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

CANNOT_RUN = 2
FAILS = 1

SEEN = "seen: "
"""Prefix of the line with a script's result."""

_PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


class Recorder(MetaPathFinder):
    """Finds modules as usual, and records those in `modules`."""

    def __init__(self, record: Path, modules: Sequence[str]) -> None:
        self._record, self._modules = record, frozenset(modules)
        self.found: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Record Python's own result."""
        if fullname not in self._modules:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None:
            self.found.add(fullname)
            # A namespace package has only locations.
            where = spec.origin or next(iter(spec.submodule_search_locations or ()), "")
            with self._record.open("a") as record:
                record.write(json.dumps([fullname, where]) + "\n")
        return spec


def main(parent: str, script: str, record: str, site: str, *modules: str) -> None:
    """Run the script and exit with its code, printing an exception; CANNOT_RUN if a failing import ends it."""
    # An orphaned script must not keep a GPU busy.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit(CANNOT_RUN)
    # Before the script's own folder, which Python would look into first.
    sys.path[:1] = [site, str(Path(script).resolve().parent)]
    sys.argv = [script]
    recorder = Recorder(Path(record), modules)
    sys.meta_path.insert(0, recorder)
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception as error:  # noqa: BLE001 - whatever a script raises
        traceback.print_exc()
        # A script may have closed its output, or its output may not take every character.
        with contextlib.suppress(OSError, ValueError):
            # Only the first line: pages of advice may follow.
            sys.stdout.write(f"{SEEN}{type(error).__name__}: {error}".splitlines()[0] + "\n")
        # A module whose import failed is removed from sys.modules.
        unimported = any(name not in sys.modules for name in recorder.found)
        sys.exit(CANNOT_RUN if unimported or isinstance(error, ImportError) else FAILS)


if __name__ == "__main__":
    main(*sys.argv[1:])
