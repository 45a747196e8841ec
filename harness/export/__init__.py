"""Stand-alone scripts: a failure without this project, for whoever owns the kernel."""

from attnfuzz.harness.check import Runner, shared_runner
from attnfuzz.harness.export.script import CannotExport, render_script
from attnfuzz.reference.case import Case

__all__ = ["CannotExport", "export_script"]


def export_script(case: Case, runner: Runner | None = None) -> str:
    """Run a case once more, and make a script of the calls in which it ended.

    Raises:
        CannotExport: nothing was launched, or a kernel's source can't be carried along.
    """
    verdict, calls = (runner or shared_runner()).trace(case)
    if calls is None:
        raise CannotExport(f"no kernel was launched{f' ({verdict.unsupported})' if verdict.unsupported else ''}")
    return render_script(case, calls, verdict.failures[0] if verdict.failures else None)
