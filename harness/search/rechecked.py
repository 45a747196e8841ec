"""Running the case of an earlier campaign's finding again."""

from attnfuzz.harness.sandbox.again import show_again
from attnfuzz.harness.sandbox.case_runner import RepeatingRunner
from attnfuzz.harness.sandbox.confirm import recheck
from attnfuzz.harness.search.messages import Rechecked, Replay

SECONDS = 60.0
"""Time limit to show a flaky finding again."""


def rechecked(runner: RepeatingRunner, replay: Replay, finding: str) -> Rechecked:
    """Run a finding's case until it fails. A flaky one is run as many times as its rate requires."""
    if replay.recurrence is None:
        runs, verdict = recheck(runner, replay.case)
        return Rechecked(finding=finding, observations=verdict.failures, runs=runs, unsupported=verdict.unsupported)
    (failed,) = replay.failed
    shown = show_again(runner, replay.case, failed, replay.recurrence, replay.history, seconds=SECONDS)
    return Rechecked(
        finding=finding,
        observations=() if shown.verdict is None else shown.verdict.failures,
        runs=shown.runs,
        unsupported=shown.unsupported,
        inconclusive=not shown.conclusive,
    )
