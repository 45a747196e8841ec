"""Running an exported script as its reader will: in a fresh process, without attnfuzz, within a time limit."""

import contextlib
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from attnfuzz.harness.workers import left_behind
from attnfuzz.kernels.interface.toolchain import toolchains

_WITHOUT_ATTNFUZZ = """
import os, runpy, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "attnfuzz":
            raise ImportError("the script needs attnfuzz")

sys.meta_path.insert(0, Blocked())
sys.argv = sys.argv[1:]
sys.path[:0] = sys.argv[1].split(os.pathsep) if sys.argv[1] else []
prelude = sys.argv[2]
del sys.argv[1:]
try:
    exec(prelude, {})
except ImportError:
    # The script reports it.
    pass
runpy.run_path(sys.argv[0], run_name="__main__")
"""

_SHOWN = 1
"""Exit code of a script that shows its failure, and of any Python program that breaks."""

_CONCLUSIONS = ("the fault shows", "Timeout (")
"""Conclusions that a script prints if it shows its failure: its own, or that of `faulthandler` if a GPU hangs."""


@dataclass(frozen=True)
class Proof:
    """One run of a script: its exit `code`, None if it took too long; its output, `printed`; and `seconds`."""

    code: int | None
    printed: str
    seconds: float

    @property
    def shows(self) -> bool:
        """Whether the script showed the failure."""
        return self.code == _SHOWN and any(words in self.printed for words in _CONCLUSIONS)

    @property
    def obstacle(self) -> str:
        """The reason why the script did not show the failure, as a clause; "" if it did."""
        if self.shows:
            return ""
        if self.code is None:
            return f"it was stopped after {self.seconds:.0f} s"
        if self.code == 0:
            return "its calls found nothing wrong"
        lines = [line.strip() for line in self.printed.splitlines() if line.strip()]
        # The last line of a traceback, or the line before the script's own conclusion.
        said = next((line for line in reversed(lines) if not line.startswith("it could not run")), "")
        return f"it could not run (exit code {self.code}{f': {said}' if said else ''})"


class Proving:
    """A script that runs beside this process, for at most `seconds`.

    The environment is this process's, without its Python settings, except that folders of installed packages stay
    importable: a library may be on PYTHONPATH alone. Compiled modules of toolchains are used.
    """

    def __init__(self, script: str, seconds: float) -> None:
        self._began = time.monotonic()
        self._deadline = self._began + seconds
        folders = os.pathsep.join(_folders_of_packages())
        prelude = "".join(each.prelude(script) for each in toolchains())
        with contextlib.ExitStack() as opened:
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="attnfuzz-script-"))
            path, self._output = Path(folder, "repro.py"), Path(folder, "printed")
            path.write_text(script)
            with self._output.open("wb") as file:
                # A group of its own: a script forks, and its child must end with it. The session is that of the job,
                # which may be killed.
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-c", _WITHOUT_ATTNFUZZ, str(path), folders, prelude],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    process_group=0,
                )
            self._opened = opened.pop_all()

    def close(self) -> None:
        """End the script, if it still runs, and delete its folder."""
        left_behind.end_group(self._process)
        self._opened.close()

    def proof(self, seconds: float = math.inf) -> Proof | None:
        """Return the script's result when it has ended or its time is over. Returns None if neither is in `seconds`."""
        left = self._deadline - time.monotonic()
        try:
            code: int | None = self._process.wait(max(0.0, min(seconds, left)))
        except subprocess.TimeoutExpired:
            if seconds < left:
                return None
            code = None
        # Its child may hold the output open.
        left_behind.end_group(self._process)
        return Proof(code, self._output.read_text(errors="replace"), time.monotonic() - self._began)


def prove(script: str, seconds: float) -> Proof:
    """Run a script for at most `seconds`, as `Proving` does."""
    with contextlib.closing(Proving(script, seconds)) as proving:
        proof = proving.proof()
    assert proof is not None, "its time is limited"
    return proof


def _folders_of_packages() -> list[str]:
    """Return the folders on PYTHONPATH that packages were installed into: others may hold attnfuzz, or neighbours."""
    folders = [Path(each).resolve() for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    return [str(folder) for folder in folders if next(folder.glob("*.dist-info"), None) is not None]
