"""Runs a script with a site's modules, in a process of its own, and writes down where each was imported from.

It is run as a file, `python launched.py PARENT SCRIPT RECORD SITE MODULE ...`, and ends with the process PARENT. It
imports nothing but the standard library: what else there is belongs to the site and the script. RECORD gets a line of
JSON, [module, file], when a module is found, so that the death of the process takes nothing away.
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
"""What the line begins with that says what became of a script."""

_PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


class Recorder(MetaPathFinder):
    """Finds modules as ever, and records those in `modules`."""

    def __init__(self, record: Path, modules: Sequence[str]) -> None:
        self._record, self._modules = record, frozenset(modules)
        self.found: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where Python's own finder finds it."""
        if fullname not in self._modules:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None:
            self.found.add(fullname)
            # A folder without __init__.py has locations alone.
            where = spec.origin or next(iter(spec.submodule_search_locations or ()), "")
            with self._record.open("a") as record:
                record.write(json.dumps([fullname, where]) + "\n")
        return spec


def main(parent: str, script: str, record: str, site: str, *modules: str) -> None:
    """Run it, and exit as it does, but with CANNOT_RUN if it ends with an import that fails.

    An exception that ends it is what was seen, unless the script says that itself.
    """
    # A script that nobody waits for any more must not keep a GPU busy.
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
            # The first line: pages of advice may follow.
            sys.stdout.write(f"{SEEN}{type(error).__name__}: {error}".splitlines()[0] + "\n")
        # A module whose import has failed, with whatever error, is taken out again.
        unimported = any(name not in sys.modules for name in recorder.found)
        sys.exit(CANNOT_RUN if unimported or isinstance(error, ImportError) else FAILS)


if __name__ == "__main__":
    main(*sys.argv[1:])
