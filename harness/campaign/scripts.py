"""Stand-alone scripts of the failures that a job caught, made by its own workers and run without attnfuzz."""

from attnfuzz.harness.export import CannotExport, Exporter
from attnfuzz.harness.export.proof import prove
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.messages import Caught, Scripted
from attnfuzz.harness.workers.pool import HandlerError

MOST_SECONDS = 120.0
"""Time limit for a script, which may compile its kernels."""

LEAST_SECONDS = 5.0
"""Minimum time for which a script is begun: importing torch takes 2 to 4 s."""


def script_of(caught: Caught, runner: Runner, seconds: float) -> Scripted:
    """Make a script with the kernels' source or FlashInfer's functions, and run it if there are `seconds` left.

    Runs the case. A script that does not show the failure is not kept, unless this is flaky or there was no time.
    """
    try:
        exporter = Exporter(caught.case, runner, failed=caught.observation, recurrence=caught.recurrence)
        script = exporter.best_script()
    except CannotExport as obstacle:
        return Scripted(script=None, obstacle=str(obstacle))
    except HandlerError as error:
        # The failure is a finding even if tracing its calls breaks.
        runner.renew()
        return Scripted(script=None, obstacle=f"tracing its calls failed: {error}")
    if seconds < LEAST_SECONDS:
        return Scripted(script=script, obstacle="it was not run: no time was left")
    proof = prove(script, min(seconds, MOST_SECONDS))
    unsettled = proof.code is None or caught.recurrence is not None
    return Scripted(script=script if proof.shows or unsettled else None, obstacle=proof.obstacle)
