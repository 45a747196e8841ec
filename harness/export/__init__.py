"""Stand-alone scripts: a failure without this project, for whoever owns the kernel."""

from attnfuzz.harness.check import Runner, shared_runner
from attnfuzz.harness.export.script import CannotExport, render_script
from attnfuzz.harness.failures import Kind, Verdict
from attnfuzz.harness.judge import Tier
from attnfuzz.harness.trace import Untraceable
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case_file import AnyCase, case_id

__all__ = ["CannotExport", "export_script"]

_JUDGED_BY_ANSWER = frozenset(
    {Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH, Kind.EMPTY_ROW, Kind.UNWRITTEN, Kind.NOT_FINITE, Kind.PADDING_LEAK}
)


def export_script(case: AnyCase, runner: Runner | None = None) -> str:
    """Run a case once more, and make a script of the calls in which it ended.

    Raises:
        CannotExport: nothing was launched, calls alone do not show what failed, or a kernel's source can't be carried
            along.

    """
    verdict, calls = _calls_of(case, runner or shared_runner())
    if calls is None:
        raise CannotExport(f"no kernel was launched{f' ({verdict.unsupported})' if verdict.unsupported else ''}")
    seen = verdict.failures[0] if verdict.failures else None
    if seen is not None and seen.tier == Tier.T6:
        raise CannotExport("two runs differ, and each is right by itself: the calls of one do not show it")
    if seen is not None and seen.kind in _JUDGED_BY_ANSWER and calls.answer is None:
        raise CannotExport(f"{case.backend} changes what its kernels return: their calls alone do not show the failure")
    return render_script(case_id(case), calls, seen)


def _calls_of(case: AnyCase, runner: Runner) -> tuple[Verdict, CallCase | None]:
    if isinstance(case, CallCase):
        return runner.verdict(case), case
    try:
        return runner.trace(case)
    except Untraceable as obstacle:
        raise CannotExport(str(obstacle)) from obstacle
