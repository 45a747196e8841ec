"""The right contents that scripts of recurrent state compare agree with the judge."""

import inspect
from dataclasses import replace
from typing import Any

import pytest

from attnfuzz.harness.families import recurrent
from attnfuzz.harness.families.state_judge import compared_state, judge_state
from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.judge.compared import judge_compared
from attnfuzz.harness.judge.judge import Judgement
from attnfuzz.harness.judge.terms import JudgingTerms
from attnfuzz.harness.search.examples import run_examples
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.recurrent.backend import StateBackend
from attnfuzz.kernels.recurrent.native import NATIVE_STATES
from attnfuzz.kernels.recurrent.result import StateResult
from attnfuzz.reference.recurrent.case import StateCase
from attnfuzz.strategies.states import state_cases

pytestmark = pytest.mark.slow
"""Many cases are drawn, and run."""


def changing(backend: StateBackend, argument: str) -> StateBackend:
    """Return a backend whose functions also change a number of an output or of the pool."""

    def changed(function: Any) -> Any:
        def run(**arguments: Any) -> None:
            function(**arguments)
            arguments[argument].flatten()[:1].add_(3)

        run.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return run

    return replace(backend, functions={mode: changed(each) for mode, each in backend.functions.items()})


@pytest.mark.parametrize("argument", ["", "out", "state"])
@pytest.mark.parametrize("right", NATIVE_STATES, ids=lambda each: each.name)
def test_compared_tensors_fail_if_the_judge_fails(
    right: StateBackend, argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = changing(right, argument) if argument else right
    seen = set[bool]()

    def judge_both(result: StateResult, terms: JudgingTerms) -> Judgement:
        found = judge_state(result, terms)
        # Only the judge has the mean square of rows.
        fails = any(each.tier != "T2" for each in found.observations)
        assert bool(judge_compared(compared_state(result), terms).observations) is fails, found.observations
        seen.add(fails)
        return found

    monkeypatch.setattr(recurrent, "judge_state", judge_both)

    def visit(case: StateCase) -> None:
        Execution(Task(case=case, backend=case.backend), lambda _: None, backend=backend).run()  # type: ignore[arg-type]

    run_examples(state_cases(right.capability, right.name), visit, examples=5, seed_of=7)
    assert (True in seen) is bool(argument)
