"""A case goes on after failures of its past, and a later one is its failure."""

from dataclasses import dataclass

import pytest
from harness_cases import decode_case
from msgspec.structs import replace

from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.interface.backend import Bench, Output
from attnfuzz.kernels.libraries.torch_sdpa import SdpaBackend, SdpaSession
from attnfuzz.reference.case import Case
from attnfuzz.reference.past import PastFailure
from attnfuzz.reference.relation import Relation

PLAIN = decode_case("torch_sdpa", 5, 9, padded=2)
THREE_STEPS = replace(PLAIN, steps=PLAIN.steps * 3)
WRONG = PastFailure("OutputMismatch", "out", "scaled_dot_product_attention", "decode")


@dataclass(frozen=True)
class _Broken(SdpaBackend):
    """A backend whose steps have this number in an output; None is a right step."""

    numbers: tuple[float | None, ...] = ()

    def open(self, case: Case, bench: Bench) -> SdpaSession:
        session = _BrokenSession(case, bench, call_without_keys=False)
        session.numbers = self.numbers
        return session


class _BrokenSession(SdpaSession):
    numbers: tuple[float | None, ...]

    def forward(self, index: int) -> Output:
        output = super().forward(index)
        number = self.numbers[index]
        if number is not None:
            output.out[0].fill_(number)
        return output


def verdict_on(*numbers: float | None, past: tuple[PastFailure, ...] = (WRONG,), case: Case = THREE_STEPS) -> Verdict:
    broken = _Broken(numbers=numbers)
    return Execution(Task(case=replace(case, past=past), backend="torch_sdpa"), lambda _: None, backend=broken).run()


def test_a_case_ends_with_its_first_failure() -> None:
    verdict = verdict_on(9.0, float("nan"), None, past=())
    assert [(each.kind, each.step) for each in verdict.failures] == [(Kind.OUTPUT_MISMATCH, 0)]
    assert verdict.passed == ()


def test_a_later_failure_shows_behind_those_of_the_past() -> None:
    verdict = verdict_on(9.0, float("nan"), None)
    assert [(each.kind, each.step) for each in verdict.failures] == [(Kind.NOT_FINITE, 1)]
    assert [(each.kind, each.step) for each in verdict.passed] == [(Kind.OUTPUT_MISMATCH, 0)]


def test_a_case_that_has_failures_of_its_past_alone_runs_to_its_end() -> None:
    verdict, right = verdict_on(9.0, None, 9.0), verdict_on(None, None, None)
    assert verdict.failures == ()
    assert [(each.kind, each.step) for each in verdict.passed] == [(Kind.OUTPUT_MISMATCH, 0)]
    assert verdict.rows == right.rows
    assert max(verdict.margins.values()) <= 1


def test_a_failure_beside_one_of_the_past_ends_the_case() -> None:
    verdict = verdict_on(
        float("nan"),
        None,
        None,
        past=(PastFailure("NotFinite", "lse", "scaled_dot_product_attention", "decode"), WRONG),
    )
    assert [(each.kind, each.step) for each in verdict.failures] == [(Kind.NOT_FINITE, 0)]
    assert verdict.passed == ()


@pytest.mark.parametrize("field", ["kind", "place", "kernel", "mode"])
def test_a_past_failure_matches_only_if_all_its_fields_do(field: str) -> None:
    other = replace(WRONG, **{field: "another"})
    assert [each.step for each in verdict_on(9.0, None, None, past=(other,)).failures] == [0]


def test_no_case_goes_on_after_an_exception() -> None:
    raised = verdict_on(
        9.0, past=(PastFailure("Raised", "IndexError", "scaled_dot_product_attention", "decode"), WRONG)
    )
    assert [(each.kind, each.step) for each in raised.failures] == [(Kind.RAISED, 1)]


def test_a_run_with_failures_of_the_past_is_compared_with_no_other() -> None:
    related = replace(PLAIN, relation=Relation.PADDING_ENLARGED)
    assert verdict_on(9.0, None, case=related).failures == ()
