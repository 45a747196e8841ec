"""A job hands over each finding with a stand-alone script, and says whose fault it is."""

import time

from msgspec.structs import replace

from attnfuzz.harness.export import CannotExport, Exporter
from attnfuzz.harness.export.proof import prove
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


def handed_over(caught: Caught, runner: Runner, seconds: float) -> HandedOver:
    """Make a script as `script_of` does, and find out whose fault it is unless the cause is known. Runs the case."""
    began = time.monotonic()
    handed = script_of(caught, runner, seconds)
    triaged = not caught.cause and seconds - (time.monotonic() - began) >= LEAST_SECONDS
    return replace(handed, blame=blame_of(caught, runner)) if triaged else handed


def script_of(caught: Caught, runner: Runner, seconds: float) -> HandedOver:
    """Make a script with the kernels' source or FlashInfer's functions, and run it if there are `seconds` left.

    Runs the case. A script that does not show the failure is not kept, unless this is flaky or there was no time.
    """
    try:
        exporter = Exporter(caught.case, runner, failed=caught.observation, recurrence=caught.recurrence)
        script = exporter.best_script()
    except CannotExport as obstacle:
        return HandedOver(script=None, obstacle=str(obstacle))
    except HandlerError as error:
        # The failure is a finding even if tracing its calls breaks.
        runner.renew()
        return HandedOver(script=None, obstacle=f"tracing its calls failed: {error}")
    if seconds < LEAST_SECONDS:
        return HandedOver(script=script, obstacle="it was not run: no time was left")
    proof = prove(script, min(seconds, MOST_SECONDS))
    unsettled = proof.code is None or caught.recurrence is not None
    return HandedOver(script=script if proof.shows or unsettled else None, obstacle=proof.obstacle)


def blame_of(caught: Caught, runner: Runner) -> Blamed | None:
    """Return whose fault a failure is, or None if its calls can't be traced. Runs the case."""
    try:
        found = blamed_for(caught.case, caught.observation, runner)
    except HandlerError:
        runner.renew()
        return None
    return Blamed(fault=found.fault, conclusion=found.conclusion, sentences=found.sentences[:_MOST_SENTENCES])
