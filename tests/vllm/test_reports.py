"""The reports in the releases that had them, and in those that fixed them; and the general strategies meet them."""

import pytest

from attnfuzz.harness.reported.bugs import Bug, load_bugs
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import drawn_cases, run_examples
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference.any_case import AnyCase

pytestmark = pytest.mark.vllm

BUGS = {bug.name: bug for bug in load_bugs() if bug.release.startswith("vllm")}

EXAMPLES = 200
"""What is drawn at most until a report is met."""


def kinds(bug: Bug, backend: str, runner: Runner) -> set[Kind]:
    """The failures of the report's kinds; the releases of one may have others beside it."""
    assert bug.case_in_release is not None
    verdict = runner.verdict(bug.case_in_release.having(backend=backend))
    assert verdict.unsupported is None
    return {each.kind for each in verdict.failures} & set(bug.kinds)


@pytest.mark.parametrize("name", BUGS)
def test_a_report_fails_in_the_release_that_had_it_and_passes_in_the_one_that_fixed_it(
    name: str, runner: Runner
) -> None:
    bug = BUGS[name]
    assert kinds(bug, bug.release, runner)
    if bug.release_after:
        assert not kinds(bug, bug.release_after, runner)


@pytest.mark.parametrize("name", BUGS)
def test_the_general_strategies_meet_a_report_in_its_release(name: str, runner: Runner) -> None:
    bug, seen, found = BUGS[name], 0, 0

    def visit(case: AnyCase) -> None:
        nonlocal seen, found
        seen += 1
        if not found and {each.kind for each in runner.verdict(case).failures} & set(bug.kinds):
            found = seen

    run_examples(drawn_cases(bug.release), visit, examples=EXAMPLES, seed_of=7)
    assert found
