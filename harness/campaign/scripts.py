"""Stand-alone scripts of the failures that a job caught, made by its own workers."""

from attnfuzz.harness.export import CannotExport, Exporter
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.messages import Caught
from attnfuzz.harness.workers.pool import HandlerError


def script_of(caught: Caught, runner: Runner) -> str | None:
    """Return a script with the kernels' source or FlashInfer's functions, or None if neither works. Runs the case."""
    try:
        exporter = Exporter(caught.case, runner, failed=caught.observation, recurrence=caught.recurrence)
        return next(exporter.scripts(), None)
    except CannotExport:
        return None
    except HandlerError:
        # The failure is a finding even if tracing its calls breaks.
        runner.renew()
        return None
