"""Two causes are one if each is the same misread argument by itself, at entry points that share no case."""

from collections.abc import Callable
from functools import partial

import pytest
from fake_causes import Fault, FaultyJudge
from fake_search import caught, hunt
from hypothesis import strategies as st
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.misread import may_be_one_misreading, one_misreading
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.arguments import ArgumentForm, EarlierUse
from attnfuzz.reference.case import Case, Mask, Mode, Scales

F = ArgumentForm
Fails = Callable[[Case], object]

DECODE = Case(backend="cuda_graph_decode", geometry=HEADS, steps=(step(Mode.DECODE, (1, 5)),))
PREFILL = replace(DECODE, backend="fa2_ragged", steps=(step(Mode.EXTEND, (3, 5)),))
TORCH = replace(PREFILL, backend="varlen_attn_out")


def passed(case: Case, *forms: ArgumentForm) -> Case:
    return replace(case, arguments=forms)


def judged(fails: Fails, case: Case) -> Verdict:
    """A kernel faults in prefill, and is wrong in decode."""
    kind = Kind.OUTPUT_MISMATCH if case.steps[0].mode is Mode.DECODE else Kind.ILLEGAL_ACCESS
    seen = Observation(
        kind=kind, place="out", message="", step=0, mode=case.steps[0].mode, kernel=case.backend, margin=9.0
    )
    return Verdict(observations=(seen,) if fails(case) else ())


def its(fails: Fails, case: Case, *needs: str) -> KnownCause:
    fingerprint = Fingerprint.of(case.backend, judged(fails, case).failures[0])
    return KnownCause(name=case.backend, case=case, fingerprint=fingerprint, needs=needs)


def one_cause(fails: Fails, one: KnownCause, other: KnownCause) -> bool:
    """Each entry point takes its own mode alone: no case can be moved to the other."""

    def allowed(case: Case) -> bool:
        return (case.steps[0].mode is Mode.DECODE) is (case.backend == DECODE.backend)

    found = {
        one_misreading(first, second, lambda case: judged(fails, case), allowed)
        for first, second in ((one, other), (other, one))
    }
    assert len(found) == 1
    if found == {True}:
        assert may_be_one_misreading(one, other)
    return found.pop()


@pytest.mark.parametrize(
    ("form", "others"),
    [
        (F.LENGTHS_INT64, F.QUERY_STARTS_GAPS),
        (F.PAGE_IDS_GAPS, F.KEY_STARTS_GAPS),
        (F.OUT_GAPS, F.LSE_HEADS_FIRST),
        (F.QUERY_ELEMENTS_APART, F.VALUES_GAPS),
    ],
)
def test_arguments_of_one_role_that_are_taken_for_dense_are_one_cause(form: F, others: F) -> None:
    def fails(case: Case) -> bool:
        return bool(case.arguments)

    assert one_cause(fails, its(fails, passed(DECODE, form), form), its(fails, passed(PREFILL, others), others))


def test_another_role_is_another_cause() -> None:
    def fails(case: Case) -> bool:
        return bool(case.arguments)

    lengths, output = passed(DECODE, F.LENGTHS_GAPS), passed(PREFILL, F.OUT_GAPS)
    assert not one_cause(fails, its(fails, lengths, F.LENGTHS_GAPS), its(fails, output, F.OUT_GAPS))


def test_kernels_of_two_libraries_are_two_causes() -> None:
    def fails(case: Case) -> bool:
        return bool(case.arguments)

    ours, its_own = (its(fails, passed(each, F.OUT_GAPS), F.OUT_GAPS) for each in (DECODE, TORCH))
    assert not one_cause(fails, ours, its_own)


def test_a_case_that_fails_in_the_plain_form_too_is_another_cause() -> None:
    def fails(case: Case) -> bool:
        return bool(case.arguments) or case.backend == PREFILL.backend

    form = F.LENGTHS_INT64
    assert not one_cause(fails, its(fails, passed(DECODE, form), form), its(fails, passed(PREFILL, form), form))


def test_a_form_that_fails_with_another_clue_alone_is_another_cause() -> None:
    def fails(case: Case) -> bool:
        return bool(case.arguments) and (case.backend == DECODE.backend or case.geometry.window_left >= 0)

    windowed = replace(PREFILL, geometry=replace(HEADS, window_left=1))
    form = F.LENGTHS_INT64
    other = its(fails, passed(windowed, form), form, "window")
    assert not one_cause(fails, its(fails, passed(DECODE, form), form), other)


def test_a_form_that_fails_with_either_of_two_other_clues_is_another_cause() -> None:
    def fails(case: Case) -> bool:
        clues = case.geometry.window_left >= 0 or case.geometry.sinks
        return bool(case.arguments) and (case.backend == DECODE.backend or clues)

    both = replace(PREFILL, geometry=replace(HEADS, window_left=1, sinks=True))
    form = F.LENGTHS_INT64
    assert not one_cause(fails, its(fails, passed(DECODE, form), form), its(fails, passed(both, form), form))


def test_a_clue_that_the_argument_itself_needs_is_no_other() -> None:
    def fails(case: Case) -> bool:
        return F.MASK_GAPS in case.arguments

    masked = [passed(replace(each, mask=Mask.CUSTOM), F.MASK_GAPS) for each in (DECODE, PREFILL)]
    assert one_cause(fails, *(its(fails, each, "mask", F.MASK_GAPS) for each in masked))


def test_a_case_that_was_not_minimized_predicts_by_the_forms_that_it_has() -> None:
    def fails(case: Case) -> bool:
        return F.LENGTHS_GAPS in case.arguments or F.QUERY_STARTS_INT64 in case.arguments

    large = passed(replace(PREFILL, geometry=replace(HEADS, sinks=True)), F.QUERY_STARTS_INT64, F.OUT_GAPS)
    assert one_cause(fails, its(fails, passed(DECODE, F.LENGTHS_GAPS), F.LENGTHS_GAPS), its(fails, large))


FACTORS = [replace(DECODE, scales=Scales(softmax=0.0)), replace(DECODE, backend="fa2_ragged", scales=Scales(k=-1.0))]
EDGES = ("softmax scale", "softmax scale of 0 or below"), ("K scale", "K scale of 0 or below")


def at_an_edge(case: Case) -> bool:
    return case.scales.softmax * case.scales.k <= 0


def test_factors_of_the_logits_at_an_edge_are_one_cause_if_they_fail_alike() -> None:
    softmax, k = (its(at_an_edge, case, *needs) for case, needs in zip(FACTORS, EDGES, strict=True))
    run = partial(judged, at_an_edge)
    assert one_misreading(softmax, k, run, lambda _: True)

    def elsewhere(case: Case) -> Verdict:
        place = "lse" if case.backend == DECODE.backend else "out"
        return Verdict(observations=tuple(replace(each, place=place) for each in run(case).observations))

    assert not one_misreading(softmax, k, elsewhere, lambda _: True)


def test_each_earlier_use_is_a_misreading_of_its_own() -> None:
    def fails(case: Case) -> bool:
        return bool(case.life)

    reset, copied, again = (
        its(fails, replace(case, life=(use,)), use)
        for case, use in (
            (DECODE, EarlierUse.RESET),
            (replace(DECODE, backend="fa2_ragged"), EarlierUse.COPIED),
            (replace(DECODE, backend="fa2_ragged"), EarlierUse.RESET),
        )
    )
    run = partial(judged, fails)
    assert not one_misreading(reset, copied, run, lambda _: True)
    assert one_misreading(reset, again, run, lambda _: True)


def test_a_hunt_files_a_misread_argument_under_the_known_cause_of_its_role() -> None:
    kinds = (Kind.OUTPUT_MISMATCH,)
    forms = (F.LENGTHS_INT64, F.QUERY_STARTS_GAPS)
    judge = FaultyJudge(*(Fault(needs=(form,), kinds=kinds) for form in forms))
    known, failing = (
        passed(replace(DECODE, backend="fake", steps=(step(mode, (1, 5)),)), form)
        for mode, form in zip((Mode.DECODE, Mode.EXTEND), forms, strict=True)
    )
    fingerprint = Fingerprint.of("fake", judge.verdict(known).failures[0])
    cause = KnownCause(name="known", case=known, fingerprint=fingerprint, needs=(forms[0],))
    _, sent = hunt(judge, st.just(failing), examples=2, known=(fingerprint,), causes=(cause,))
    (found,) = caught(sent)
    assert (found.needs, found.cause) == ((forms[1],), "known")
