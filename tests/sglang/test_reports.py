"""The reports in the releases that had them: by their own cases, and by the general strategies.

The strategies lean to the features of a report's case, as a campaign leans to what it has not reached: releases on
interpreted kernels judge about a case in a second.
"""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.reported.bugs import Bug, load_bugs
from attnfuzz.harness.reported.counterparts import shown_on
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import drawn_cases
from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.messages import AnyMessage, Caught, ShrinkBudget, Slice
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case
from attnfuzz.strategies.coverage.features import features_of
from attnfuzz.strategies.lean import Lean

pytestmark = pytest.mark.sglang

BUGS = {
    bug.name: bug for bug in load_bugs() if bug.release.startswith("sglang") and isinstance(bug.case_in_release, Case)
}
"""Those of attention. test_states.py has those of recurrent state, test_sparse.py those of sparse attention."""

EXAMPLES = 600
"""What is drawn at most until a report is met."""


def kinds(bug: Bug) -> tuple[Kind, ...]:
    return (*bug.kinds, Kind.CONTRACT_BROKEN)


def case_of(bug: Bug) -> Case:
    assert isinstance(bug.case_in_release, Case)
    return bug.case_in_release


@pytest.mark.parametrize("name", BUGS)
def test_a_report_fails_in_the_release_that_had_it_and_passes_in_the_one_that_fixed_it(
    name: str, runner: Runner
) -> None:
    bug = BUGS[name]
    shown = shown_on(bug.release, case_of(bug), kinds(bug), runner, after=bug.release_after, examples=0)
    assert shown.before is not None
    assert any(failure.kind in kinds(bug) for failure in shown.before.failures)
    if not bug.release_after:
        return
    assert shown.after is not None
    assert shown.after.unsupported is None
    assert not shown.after.failures


@pytest.mark.parametrize("release", ["sglang==0.5.9", "sglang==0.5.10.post1"])
def test_a_prefix_chunk_without_keys_fails_in_all_releases_before_its_fix(release: str, runner: Runner) -> None:
    bug = BUGS["sglang-22688"]
    verdict = runner.verdict(replace(on_release(bug), backend=f"{release}:trtllm_mla"))
    assert verdict.unsupported is None
    assert any(failure.kind in kinds(bug) for failure in verdict.failures)


def on_release(bug: Bug) -> Case:
    views = replace(case_of(bug).views, kv=resolve(bug.release).capability.kv_views[0])
    return replace(case_of(bug), backend=bug.release, views=views)


@pytest.mark.parametrize("name", BUGS)
def test_the_general_strategies_meet_a_report_in_its_release(name: str, runner: Runner) -> None:
    assert next(met(BUGS[name], runner), None) is not None, f"not met in {EXAMPLES} examples"


def met(bug: Bug, runner: Runner) -> Iterator[Caught]:
    """The failures of drawn cases that are a report's: of its modes and kinds, and gone in the release that fixed it.

    Something else may fail in both: merges of prefixes in any release (issue 40903).
    """
    known: list[Fingerprint] = []
    modes = {step.mode.value for step in case_of(bug).steps}
    left, index = EXAMPLES, 0
    while left > 0:
        sent: list[AnyMessage] = []
        task = Slice(
            backend=bug.release,
            index=index,
            seed=index,
            examples=left,
            known=tuple(known),
            shrink=ShrinkBudget(runs=20, seconds=3.0),
            first_only=True,
            lean=Lean(tuple(sorted(features_of(case_of(bug))))),
        )
        capability = resolve(bug.release).capability
        done = Hunt(task, runner, sent.append, capability=capability).run(drawn_cases(bug.release, lean=task.lean))
        caught = [message for message in sent if isinstance(message, Caught)]
        for each in caught:
            failure = each.verdict.failures[0]
            if failure.kind in kinds(bug) and failure.mode in modes and is_gone(failure, each, bug, runner):
                yield each
        if not done.stopped_early:
            return
        known += [message.fingerprint for message in caught]
        left, index = left - done.tally.searched, index + 1


def is_gone(failure: Observation, caught: Caught, bug: Bug, runner: Runner) -> bool:
    if not bug.release_after:
        return True
    verdict = runner.verdict(caught.case.having(backend=bug.release_after))
    return verdict.unsupported is None and all(each.kind is not failure.kind for each in verdict.failures)
