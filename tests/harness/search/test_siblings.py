"""Two causes are one if either of two sibling features shows the mistake, and nothing else tells them apart."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.reduce.ablation import CLUES, SHAPE, needed
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.siblings import same_with_siblings
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case, KvView, Mode, PageOrder, Pages, Scales, Views

Fails = Callable[[Case], float | bool]
"""A kernel: whether it fails on a case, or its error over the bound."""

ONE = Case(backend="fake", geometry=replace(HEADS, page_size=1), steps=(step(Mode.EXTEND, (1, 1)),))
TWO = replace(ONE, steps=(step(Mode.EXTEND, (1, 2)),))
SHUFFLED, PAIRED = replace(TWO, pages=Pages(order=PageOrder.SHUFFLED)), replace(TWO, views=Views(kv=KvView.PAIRED))
SCALED = replace(ONE, scales=Scales(k=2.0)), replace(ONE, scales=Scales(v=0.5))


def judged(fails: Fails, case: Case, beside: tuple[Observation, ...] = ()) -> Verdict:
    seen = Observation(kind=Kind.OUTPUT_MISMATCH, place="out", message="wrong", step=0, mode="extend", kernel="attend")
    error = fails(case)
    return Verdict(observations=((replace(seen, margin=float(error)),) if error else ()) + beside)


def one_cause(fails: Fails, *cases: Case, beside: tuple[Observation, ...] = ()) -> bool:
    """Whether the causes of two smallest cases are one, in both orders; all cases fail as `beside` too."""

    def cause(case: Case) -> KnownCause:
        (failure,) = judged(fails, case).failures
        needs = tuple(each.name for each in needed(case, lambda case: bool(fails(case)), among=CLUES | SHAPE))
        return KnownCause(name=str(hash(case)), case=case, fingerprint=Fingerprint.of("fake", failure), needs=needs)

    causes = [cause(case) for case in cases]
    found = {
        same_with_siblings(one, other, lambda case: judged(fails, case, beside), lambda _: True)
        for one, other in (causes, causes[::-1])
    }
    assert len(found) == 1
    return found.pop()


def shuffled(case: Case) -> bool:
    return case.pages.order is not PageOrder.IDENTITY


def paired(case: Case) -> bool:
    return case.views.kv is not KvView.SEPARATE


def several_keys(case: Case) -> bool:
    return max(case.slot_lengths().values()) > 1


def pages_in_a_row(case: Case) -> bool:
    return several_keys(case) and (shuffled(case) or paired(case))


def test_pages_taken_to_be_consecutive_show_in_their_order_and_in_a_view() -> None:
    assert one_cause(pages_in_a_row, SHUFFLED, PAIRED)


def test_a_fault_of_all_cases_does_not_keep_siblings_apart() -> None:
    elsewhere = Observation(kind=Kind.LSE_MISMATCH, place="lse", message="wrong", step=0, mode="extend")
    assert one_cause(pages_in_a_row, SHUFFLED, PAIRED, beside=(elsewhere,))


def test_mistakes_that_need_a_sibling_each_and_another_feature_are_apart() -> None:
    def two_mistakes(case: Case) -> bool:
        return (several_keys(case) and shuffled(case)) or paired(case)

    assert not one_cause(two_mistakes, SHUFFLED, replace(PAIRED, steps=ONE.steps))


def test_mistakes_that_need_a_sibling_each_and_nothing_else_are_apart() -> None:
    def two_mistakes(case: Case) -> bool:
        return shuffled(case) or paired(case)

    assert not one_cause(two_mistakes, *(replace(each, steps=ONE.steps) for each in (SHUFFLED, PAIRED)))


def test_a_scale_taken_for_another_does_not_show_where_both_are_the_same() -> None:
    assert one_cause(lambda case: case.scales.k != case.scales.v, *SCALED)


def test_two_scales_that_are_left_out_are_two_causes() -> None:
    assert not one_cause(lambda case: case.scales.k != 1 or case.scales.v != 1, *SCALED)


@pytest.mark.parametrize("view", [KvView.PAIRED, KvView.TOKEN_MAJOR])
def test_a_sibling_that_does_not_show_the_mistake_in_the_other_s_place_is_another_cause(view: KvView) -> None:
    """The second mistake needs a window that the first case has not."""

    def two_mistakes(case: Case) -> bool:
        hidden = paired(case) and case.geometry.window_left >= 0
        return several_keys(case) and (shuffled(case) or hidden)

    other = replace(TWO, views=Views(kv=view), geometry=replace(TWO.geometry, window_left=0))
    assert not one_cause(two_mistakes, SHUFFLED, other)


def test_siblings_need_not_share_the_shape_that_they_need() -> None:
    """A gap between pages shows the mistake in the second head of a group alone."""

    def strided(case: Case) -> bool:
        return several_keys(case) and (shuffled(case) or (paired(case) and case.geometry.group > 1))

    assert one_cause(
        strided, *(replace(each, geometry=replace(TWO.geometry, q_heads=4)) for each in (SHUFFLED, PAIRED))
    )


FACTORS = replace(TWO, scales=Scales(softmax=0.5)), replace(TWO, scales=Scales(k=2.0))


def test_factors_of_the_logits_that_give_the_same_error_are_one_cause() -> None:
    def error(case: Case) -> float:
        return abs(1 - case.scales.softmax * case.scales.k)

    assert one_cause(error, *FACTORS)


def test_factors_of_the_logits_with_errors_of_their_own_are_two_causes() -> None:
    def error(case: Case) -> float:
        return abs(1 - case.scales.softmax) + 5 * abs(1 - case.scales.k)

    assert not one_cause(error, *FACTORS)
