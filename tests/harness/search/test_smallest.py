"""The smallest case of a failure has plain values, if it fails with them as well."""

from typing import TypeVar

import pytest
from fake_search import observed
from last_slot import LAST_SLOT, LastSlot
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.family import family_of
from attnfuzz.harness.sandbox.case_runner import OneByOne
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.search.needs import needs_of
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.search.smallest import smallest
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Case, Mode, PageOrder, Pages, ValueFamily
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.recurrent.case import Stale, StateCase, StateMode, StateOp, StateRow, StateShape, StateStep

EQUAL_KEYS = Case(
    backend="last_slot",
    geometry=replace(HEADS, kv_layout=KvLayout.NHD),
    steps=(step(Mode.DECODE, (1, 8), (1, 16)),),
    values=ValueFamily.CONSTANT,
    pages=Pages(order=PageOrder.SHUFFLED),
)

C = TypeVar("C", bound=AnyCase)


def allowed(case: Case) -> bool:
    return LAST_SLOT.capability.why_not(case) is None


def pinned_on(judge: OneByOne, case: C) -> Pinned[C]:
    verdict = judge.verdict(case)
    return Pinned(
        Fingerprint.of(case.backend, verdict.failures[0]),
        case,
        verdict,
        run=judge.verdict,
        budget=ShrinkBudget(runs=600, seconds=600),
        aside=lambda *_: None,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plainly", "needs"),
    [(True, ("full last page", "several keys")), (False, ("page order", "full last page", "several keys"))],
)
def test_a_wrong_slot_that_equal_keys_hide_needs_no_shuffled_pages(*, plainly: bool, needs: tuple[str, ...]) -> None:
    """A wrong slot shows only on another request's page if all keys are equal. It is the slot before a full page."""
    pinned = pinned_on(LastSlot(), EQUAL_KEYS)
    case, clues = smallest(pinned, None, allowed, capability=LAST_SLOT.capability, runs=600, plainly=plainly)
    assert needs_of(pinned, case, allowed, clues=clues) == needs
    if plainly:
        assert (case.values, case.pages) == (ValueFamily.NORMAL, Pages())
        assert case.steps == (step(Mode.DECODE, (1, 2)),)


class ByValue(OneByOne):
    """Fails with sinks, and without them for the values of odd seeds."""

    def verdict(self, case: Case) -> Verdict:
        fails = case.geometry.sinks or case.seed % 2
        return Verdict(observations=(observed(),) if fails else ())

    def renew(self) -> None:
        """Nothing is kept."""


@pytest.mark.parametrize("plainly", [True, False])
def test_a_clue_that_only_the_values_of_the_case_need_goes(*, plainly: bool) -> None:
    case = Case(backend="fake", geometry=replace(HEADS, sinks=True), steps=(step(Mode.DECODE, (1, 8)),))
    judge = ByValue()
    found, _ = smallest(pinned_on(judge, case), None, lambda _: True, capability=None, runs=600, plainly=plainly)
    assert found.geometry.sinks is not plainly
    assert judge.verdict(found).failures


def test_a_plain_case_that_is_the_case_itself_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(family_of(EQUAL_KEYS)), "plain", lambda _, case: iter((case,)))
    pinned = pinned_on(LastSlot(), EQUAL_KEYS)
    case, _ = smallest(pinned, None, allowed, capability=LAST_SLOT.capability, runs=60, plainly=True)
    assert pinned.fails(case)


class ReadsStaleSlots(OneByOne):
    """A kernel of recurrent state that uses stale slots: NaN if they hold NaN, else wrong numbers."""

    def verdict(self, case: StateCase) -> Verdict:
        kind = Kind.NOT_FINITE if case.stale is Stale.NAN else Kind.OUTPUT_MISMATCH
        return Verdict(observations=(observed(kind),))

    def renew(self) -> None:
        """Nothing is kept."""


def test_a_smaller_case_has_the_nan_of_the_first_one_but_does_not_need_it() -> None:
    case = StateCase(
        backend="native:gated_delta_rule",
        op=StateOp.GATED_DELTA,
        shape=StateShape(heads=1, value_heads=1, key_dim=8, value_dim=8),
        steps=(StateStep(StateMode.PREFILL, (StateRow(0, 9, initial=False), StateRow(1, 4))),),
        stale=Stale.NAN,
    )
    pinned = pinned_on(ReadsStaleSlots(), case)
    found, clues = smallest(pinned, None, lambda _: True, capability=None, runs=600, plainly=True)
    assert pinned.reduced_to(found, clues).failure.kind is Kind.NOT_FINITE
    assert len(found.steps[0].rows) == 1
    assert needs_of(pinned, found, lambda _: True, clues=clues) == ()
