"""A job hands over each finding with a stand-alone script, and says whose fault it is."""

import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from attnfuzz.harness.backends.registry import files_of
from attnfuzz.harness.export import CannotExport, Exporter, NeedsFiles
from attnfuzz.harness.export.carried import unasked
from attnfuzz.harness.export.proof import Proving
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.messages import Caught, HandedOver
from attnfuzz.harness.triage.run import blamed_for
from attnfuzz.harness.verdict.blame import Blamed
from attnfuzz.harness.workers.supervisor import HandlerError

MOST_SECONDS = 120.0
"""Time limit for a script, which may compile its kernels."""


LEAST_SECONDS = 5.0
"""Minimum time for which a script is begun, or a triage: importing torch takes 2 to 4 s."""

_MOST_SENTENCES = 2


class ScriptRun:
    """A failure with its script, which runs beside the search to show it, until `deadline` (`time.monotonic`).

    `handed` is the result if it does not run.
    """

    def __init__(self, handed: HandedOver, deadline: float, *, flaky: bool) -> None:
        self._handed, self._deadline, self._flaky = handed, deadline, flaky
        self._proving: Proving | None = None

    def poll(self, seconds: float) -> HandedOver | None:
        """Return the result, or None if it is not known in `seconds`. The first call starts the script.

        A script that does not show the failure is not kept, unless this is flaky or there was no time.
        """
        script = self._handed.script
        if script is None:
            return self._handed
        if self._proving is None:
            left = self._deadline - time.monotonic()
            if left < LEAST_SECONDS:
                return replace(self._handed, obstacle="it was not run: no time was left")
            self._proving = Proving(script, min(left, MOST_SECONDS))
        proof = self._proving.proof(seconds)
        if proof is None:
            return None
        keep = proof.shows or proof.code is None or self._flaky
        return replace(self._handed, script=script if keep else None, obstacle=proof.obstacle)

    def close(self) -> None:
        """End the script, if it runs."""
        if self._proving is not None:
            self._proving.close()
            self._proving = None


def hand_over(caught: Caught, runner: Runner, seconds: float) -> ScriptRun:
    """Make a script of a failure, and find out whose fault it is unless the cause is known. Runs the case."""
    deadline = time.monotonic() + seconds
    handed = script_of(caught, runner)
    if not caught.cause and deadline - time.monotonic() >= 2 * LEAST_SECONDS:
        handed = replace(handed, blame=blame_of(caught, runner))
    return ScriptRun(handed, deadline, flaky=caught.recurrence is not None)


def script_of(caught: Caught, runner: Runner) -> HandedOver:
    """Make a script with the kernels' source or FlashInfer's functions, which was not run. Runs the case."""
    script, obstacle = None, ""
    try:
        exporter = Exporter(caught.case, runner, failed=caught.observation, recurrence=caught.recurrence)
        script = _with_files(exporter, files_of(caught.case.backend))
    except CannotExport as error:
        obstacle = str(error)
    except HandlerError as error:
        # The failure is a finding even if tracing its calls breaks.
        runner.renew()
        obstacle = f"tracing its calls failed: {error}"
    return HandedOver(fingerprint=caught.fingerprint, case=caught.case, script=script, obstacle=obstacle)


def _with_files(exporter: Exporter, of_backend: Sequence[Path]) -> str:
    """Return the best script, with files of the user's backend if it needs no others. Raises CannotExport."""
    try:
        return exporter.best_script()
    except NeedsFiles as needs:
        if not {*needs.files} <= {*unasked(of_backend)}:
            raise
        exporter.allow(needs.files)
        return exporter.best_script()


def blame_of(caught: Caught, runner: Runner) -> Blamed | None:
    """Return whose fault a failure is, or None if its calls can't be traced. Runs the case."""
    try:
        found = blamed_for(caught.case, caught.observation, runner)
    except HandlerError:
        runner.renew()
        return None
    return Blamed(fault=found.fault, conclusion=found.conclusion, sentences=found.sentences[:_MOST_SENTENCES])
