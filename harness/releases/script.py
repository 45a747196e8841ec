"""Run a script with the version in a site, and read its exit code and output.

Scripts exit with 0 if nothing is wrong, 1 if the fault shows, and 2 if they could not run, as exported ones do. Death
by a signal is a fault, unless the signal is one that others send. Text after "seen: " is shown.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from attnfuzz.harness.releases import launched
from attnfuzz.harness.releases.outcomes import Ending, Outcome
from attnfuzz.harness.releases.sites import Site
from attnfuzz.harness.verdict.printable import printable
from attnfuzz.harness.workers import left_behind

_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_KEPT_BYTES = 1 << 19
"""Bytes of output kept from its beginning and from its end, one of which has the line to show."""


def environment_for(site: Site, workspace: Path) -> dict[str, str]:
    """Return environment variables for a script: the site's modules, and a workspace for FlashInfer's compilations."""
    inherited = os.environ.get("PYTHONPATH")
    paths = os.pathsep.join([str(site.folder), *([inherited] if inherited else [])])
    return {"PYTHONPATH": paths, "FLASHINFER_WORKSPACE_BASE": str(workspace)}


def run_script(script: Path, site: Site, workspace: Path, seconds: float) -> Outcome:
    """Run it; end it and its children after `seconds`."""
    workspace.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        record, output, errors = (Path(scratch, name) for name in ("record", "output", "errors"))
        record.touch()
        # Unbuffered: output before a death counts.
        python = [sys.executable, "-u", launched.__file__]
        arguments = [str(os.getpid()), str(script), str(record), str(site.folder), *site.modules]
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                [*python, *arguments],
                env=os.environ | environment_for(site, workspace),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                return Outcome(Ending.CANNOT_RUN, f"it did not end within {seconds:g} s: increase --timeout")
            finally:
                left_behind.end_group(process)
        line = printable(_result_line(_text(output), _text(errors)))
        files = [file for _, file in map(json.loads, record.read_text().splitlines())]
    return _outcome(code, line, files, site)


def _outcome(code: int, line: str, files: list[str], site: Site) -> Outcome:
    """Interpret an exit code, given the `files` that modules were imported from."""
    strange = next((file for file in files if not Path(file).resolve().is_relative_to(site.folder)), None)
    if strange is not None:
        return Outcome(Ending.CANNOT_RUN, f"the script imported {strange}, which is not in {site.folder}")
    if -code in _FROM_OUTSIDE:
        return Outcome(Ending.CANNOT_RUN, f"it was killed from outside with {_signal(-code)}")
    if code == launched.CANNOT_RUN:
        return Outcome(Ending.CANNOT_RUN, line or "the script printed no reason")
    if code not in {0, launched.FAILS} and code > 0:
        return Outcome(Ending.CANNOT_RUN, f"exit code {code}, which has no meaning{f': {line}' if line else ''}")
    if not files:
        # Its result is not about this version.
        return Outcome(Ending.CANNOT_RUN, f"it did not import {' or '.join(site.modules)}{f': {line}' if line else ''}")
    if code < 0:
        return Outcome(Ending.FAILS, f"died of {_signal(-code)}{f': {line}' if line else ''}")
    return Outcome(Ending.FAILS, line or "exit code 1") if code else Outcome(Ending.PASSES)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        # Most real-time signals have no name.
        return f"signal {number}"


def _result_line(output: str, errors: str) -> str:
    """Extract a script's "seen: " text, else the last line of its output, else of its errors; empty if none."""
    lines, complaints = ([line.strip() for line in text.splitlines() if line.strip()] for text in (output, errors))
    seen = [line.removeprefix(launched.SEEN) for line in lines if line.startswith(launched.SEEN)]
    # Errors come last: libraries print warnings there.
    return next(iter([*seen[:1], *lines[-1:], *complaints[-1:]]), "")


def _text(path: Path) -> str:
    """Read the beginning and the end of a file, usually all of it."""
    with path.open("rb") as file:
        data = file.read(_KEPT_BYTES)
        if path.stat().st_size > 2 * _KEPT_BYTES:
            file.seek(-_KEPT_BYTES, os.SEEK_END)
            data += b"\n"
        return (data + file.read(_KEPT_BYTES)).decode(errors="replace")
