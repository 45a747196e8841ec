"""The features that a failure needs are found after it was made small, within its budget."""

import math

import pytest
from fake_causes import Fault, FaultyJudge, featured, hunted, names_in
from fake_search import FakeJudge, caught, hunt, kv_lens, observed
from hypothesis import strategies as st
from msgspec.structs import replace

from attnfuzz.harness.findings.finding import Finding
from attnfuzz.harness.reduce.ablation import CLUES, CONTENTS, FEATURES, features_in
from attnfuzz.harness.search import recognition
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import Replay, ShrinkBudget
from attnfuzz.harness.search.needs import cause_of, needs_of
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case, Mode, PageOrder, Scales, Unused, Workspace
from attnfuzz.reference.dtypes import DType

BOTH = featured(window=3, sinks=True)


def test_a_failure_needs_the_features_without_which_it_passes() -> None:
    (found,) = caught(hunted(FaultyJudge(Fault(needs=("sinks", "soft cap")))))
    assert found.needs == ("sinks", "soft cap")
    assert set(found.needs) <= names_in(found.case)


def test_a_failure_of_all_cases_needs_nothing() -> None:
    (found, *_) = caught(hunted(FaultyJudge(Fault())))
    assert found.needs == ()


class StrayReads(FaultyJudge):
    """A kernel that uses keys past the end: NaN is worse than another wrong number."""

    def verdict(self, case: Case) -> Verdict:
        """Judge without running anything."""
        nan = case.pages.behind is Unused.NAN
        seen = Observation(kind=Kind.NOT_FINITE if nan else Kind.OUTPUT_MISMATCH, place="out", message="wrong", step=0)
        return Verdict(observations=(seen,), rows=1)


def test_nan_in_memory_is_needed_if_numbers_there_do_no_harm() -> None:
    (found,) = caught(hunted(FaultyJudge(Fault(needs=("NaN behind the last key",), modes=(Mode.EXTEND,)))))
    assert found.needs == ("NaN behind the last key",)
    strays = caught(hunted(StrayReads()))
    assert [(each.observation.kind, each.needs) for each in strays] == [
        (Kind.NOT_FINITE, ()),
        (Kind.OUTPUT_MISMATCH, ()),
    ]


def test_nan_in_memory_that_hides_wrong_numbers_is_no_cause_of_them() -> None:
    nan, wrong = Fault(needs=("NaN behind the last key",), kinds=(Kind.NOT_FINITE,)), Fault(needs=("sinks",))
    _, sent = hunt(FaultyJudge(nan, wrong), st.just(featured(sinks=True)), examples=5)
    found = caught(sent)
    assert {each.needs for each in found} == {("NaN behind the last key",), ("sinks",)}


def test_finding_the_needs_of_a_death_costs_few_deaths() -> None:
    case = replace(
        featured(window=3, sinks=True, soft_cap=30.0),
        pages=replace(featured().pages, table_slack=3, order=PageOrder.REVERSED),
        max_len_slack=8,
        workspace=Workspace.REUSED,
        scales=Scales(softmax=0.5, k=2.0, v=2.0),
    )
    judge = FaultyJudge(Fault(needs=("soft cap",), kinds=(Kind.ILLEGAL_ACCESS,)))
    fingerprint = Fingerprint.of("fake", judge.verdict(case).failures[0])
    died: list[bool] = []

    def run(variant: Case) -> Verdict:
        verdict = judge.verdict(variant)
        died.append(bool(verdict.failures))
        return verdict

    pinned = Pinned(
        fingerprint, case, judge.verdict(case), run=run, budget=ShrinkBudget(), aside=lambda _case, _verdict: None
    )
    cause = cause_of(case, pinned, lambda _: True)
    assert cause.features == {FEATURES["soft cap"]}
    assert names_in(cause.case) & {each.name for each in CLUES - CONTENTS} == {"soft cap"}
    assert sum(died) <= math.log2(len(CLUES & features_in(case))) + 3


def test_a_death_that_needs_no_feature_is_made_small_in_few_deaths() -> None:
    judge = FaultyJudge(Fault(kinds=(Kind.ILLEGAL_ACCESS,)))
    done, sent = hunt(judge, st.just(featured(window=3, sinks=True, soft_cap=30.0)), examples=1)
    (found,) = caught(sent)
    assert (found.needs, kv_lens(found.case)) == ((), [1])
    # One is drawn, two confirm, four show that it is steady.
    assert done.tally.deaths <= 7 + 8


def test_without_a_budget_no_feature_is_known_to_be_needed() -> None:
    judge = FaultyJudge(Fault(needs=("sinks",)))
    (found, *_) = caught(hunted(judge, shrink=ShrinkBudget(runs=0, seconds=0)))
    assert found.needs == ()
    assert found.case == found.first


@pytest.mark.parametrize(("seconds", "cause"), [(None, "known"), (0.0, "")])
def test_a_failure_that_there_is_no_time_to_shrink_is_compared_with_known_causes(
    monkeypatch: pytest.MonkeyPatch, seconds: float | None, cause: str
) -> None:
    monkeypatch.setattr(recognition, "IN_FULL", 1)
    judge = FaultyJudge(Fault(needs=("sinks",)))
    decode = featured(mode=Mode.DECODE, sinks=True)
    (failure,) = judge.verdict(decode).failures
    known = KnownCause(name="known", case=decode, fingerprint=Fingerprint.of("fake", failure), needs=("sinks",))
    task = {"causes": (known,), "known": (known.fingerprint,), "shrink_seconds": seconds}
    (found, *_) = caught(hunted(judge, shrink=ShrinkBudget(runs=0, seconds=0), **task))
    assert (found.cause, found.needs) == (cause, ("sinks",) if cause else ())
    assert found.case == found.first


def test_a_failure_beside_a_known_one_is_compared_with_its_cause_again_when_its_case_is_small() -> None:
    """Large cases fail as the cause does in the first place, which says nothing about their second failure."""

    class Both(FaultyJudge):
        """Wrong outputs of decodes, wrong LSEs of single requests, both otherwise."""

        def verdict(self, case: Case) -> Verdict:
            """Judge without running anything."""
            output, lse = super().verdict(case).failures
            (step,) = case.steps
            alone = (output,) if step.mode is Mode.DECODE else (lse,) if len(step.requests) == 1 else (output, lse)
            return Verdict(observations=alone)

    judge, decode = Both(Fault(kinds=(Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH))), featured(mode=Mode.DECODE)
    shown = tuple(Fingerprint.of("fake", judge.verdict(case).failures[0]) for case in (decode, BOTH))
    lse = replace(shown[1], kind=Kind.LSE_MISMATCH)
    known = KnownCause(name="known", case=decode, fingerprint=shown[0], shown_as=(*shown, lse))
    (found,) = caught(hunted(judge, causes=(known,), known=shown))
    assert (found.observation.kind, found.cause) == (Kind.LSE_MISMATCH, "known")


def test_ablation_has_a_part_of_the_budget() -> None:
    judge = FaultyJudge(Fault(needs=("sinks",)))
    (found, *_) = caught(hunted(judge, shrink=ShrinkBudget(runs=20, seconds=60)))
    assert len(set(judge.judged)) < 60 + 20
    assert "sinks" in names_in(found.case)


def test_features_kept_by_shrinking_are_needs_when_the_budget_is_spent() -> None:
    judge = FaultyJudge(Fault(needs=("sinks", "window")))
    pinned = Pinned(
        Fingerprint.of("fake", judge.verdict(BOTH).failures[0]),
        BOTH,
        judge.verdict(BOTH),
        run=judge.verdict,
        budget=ShrinkBudget(runs=0, seconds=0),
        aside=lambda _case, _verdict: None,
    )
    assert needs_of(pinned, BOTH, lambda _: True) == ()
    assert needs_of(pinned, BOTH, lambda _: True, clues={FEATURES["sinks"]}) == ("sinks",)


def test_a_flaky_failure_is_tried_with_more_values() -> None:
    """One in eight of the cases fails, with and without sinks."""

    def run(case: Case) -> Verdict:
        fails = (case.seed + 5 * case.geometry.sinks) % 8 == 0
        seen = Observation(kind=Kind.NOT_FINITE, place="out", message="wrong", step=0)
        return Verdict(observations=(seen,) if fails else ())

    case = replace(featured(sinks=True), seed=3)
    verdict = run(case)
    (failure,) = verdict.failures
    pinned = Pinned(
        Fingerprint.of("fake", failure),
        case,
        verdict,
        run=run,
        budget=ShrinkBudget(),
        aside=lambda _case, _verdict: None,
    )
    assert needs_of(pinned, case, lambda _: True) == ()


def test_a_symptom_has_the_cause_by_the_name_that_a_failure_beside_a_known_one_is_filed_under() -> None:
    judge = FaultyJudge(Fault(needs=("window",)))
    extend, decode = featured(window=3), featured(mode=Mode.DECODE, window=3)
    (failure,) = judge.verdict(extend).failures
    fingerprint = Fingerprint.of("fake", failure)
    known = KnownCause(name="known", case=featured(sinks=True), fingerprint=fingerprint, needs=("sinks",))
    replays = tuple(Replay(case=case) for case in (extend, decode))
    first, second = caught(hunted(judge, replays=replays, causes=(known,), known=(fingerprint,)))
    assert first.beside
    filed = Finding(case=first.case, first=first.first, observation=failure, report="", needs=first.needs, apart=True)
    assert second.cause == filed.name


class WorseInFullPrecision(FaultyJudge):
    """A kernel that is wrong in extends, and in fp32 in every step: the run ends with the first step that fails."""

    def verdict(self, case: Case) -> Verdict:
        """Judge without running anything."""
        plainly = case.geometry.dtype is DType.FLOAT32
        wrong = ((index, each) for index, each in enumerate(case.steps) if plainly or each.mode is Mode.EXTEND)
        failures = [
            Observation(kind=Kind.UNWRITTEN, place="out", message="wrong", step=index, mode=each.mode.value)
            for index, each in wrong
        ]
        return Verdict(observations=tuple(failures[:1]), rows=1)


def test_a_case_that_fails_in_an_earlier_step_says_nothing_of_a_later_one() -> None:
    decode, extend = featured(mode=Mode.DECODE), featured()
    case = replace(
        extend,
        geometry=replace(extend.geometry, dtype=DType.FLOAT16, kv_dtype=DType.FLOAT16),
        steps=(*decode.steps, *(replace(each, requests=each.requests[:1]) for each in extend.steps)),
    )
    judge = WorseInFullPrecision()
    fingerprint = Fingerprint.of("fake", judge.verdict(case).failures[0])
    pinned = Pinned(
        fingerprint, case, judge.verdict(case), run=judge.verdict, budget=ShrinkBudget(), aside=lambda *_: None
    )
    assert not pinned.fails(replace(case, geometry=extend.geometry))
    assert FEATURES["16 bits"] not in cause_of(case, pinned, lambda _: True).features
    assert "16 bits" not in needs_of(pinned, case, lambda _: True)


class WrongInFewRows(FaultyJudge):
    """A kernel that is wrong in every 24th of its rows, in an order of the seeds."""

    def verdict(self, case: Case) -> Verdict:
        """Judge without running anything."""
        rows = case.geometry.q_heads * sum(request.q_len for request in case.steps[0].requests)
        seen = Observation(
            kind=Kind.OUTPUT_MISMATCH, place="out", message="wrong", step=0, mode=case.steps[0].mode.value
        )
        wrong = any((5 * case.seed + row) % 24 == 12 for row in range(rows))
        return Verdict(observations=(seen,) if wrong else (), rows=1)


@pytest.mark.parametrize("heads", [8, 64])
def test_a_failure_does_not_need_the_rows_that_make_it_likely(heads: int) -> None:
    case = featured(mode=Mode.DECODE)
    case = replace(case, geometry=replace(case.geometry, q_heads=heads, kv_heads=heads))
    judge = WrongInFewRows()
    fingerprint = Fingerprint.of("fake", judge.verdict(case).failures[0])
    pinned = Pinned(
        fingerprint, case, judge.verdict(case), run=judge.verdict, budget=ShrinkBudget(), aside=lambda *_: None
    )
    one = replace(case, geometry=replace(case.geometry, q_heads=1, kv_heads=1))
    assert not any(judge.verdict(replace(one, seed=seed)).failures for seed in range(3))
    assert "several KV heads" not in needs_of(pinned, case, lambda _: True)


def test_no_run_begins_that_could_not_end_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of a hang takes 10 s, and the smallest case has to be confirmed."""
    now = 0.0
    monkeypatch.setattr("attnfuzz.harness.search.spending.time.monotonic", lambda: now)
    failed = Verdict(observations=(Observation(kind=Kind.HANG, place="", message="it hangs"),))

    def run(_: Case) -> Verdict:
        nonlocal now
        now += 10.0
        return failed

    budget = ShrinkBudget(runs=100, seconds=45.0)
    fingerprint = Fingerprint.of("fake", failed.failures[0])
    pinned = Pinned(fingerprint, BOTH, failed, run=run, budget=budget, aside=lambda *_: None)
    for seed in range(9):
        pinned.judged(replace(BOTH, seed=seed + 100))
    assert now == 30.0
    assert pinned.spent


@pytest.mark.parametrize("seconds", [30.0, 60.0])
def test_a_hang_is_caught_within_the_time_for_shrinking(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Each hang takes 8 s, of a clock that nothing else moves."""
    now = 0.0

    class Hanging(FakeJudge):
        def verdict(self, case: Case) -> Verdict:
            nonlocal now
            now += 8.0
            return super().verdict(case)

    monkeypatch.setattr("time.monotonic", lambda: now)
    judge = Hanging(lambda _: (observed(Kind.HANG, ""),))
    done, sent = hunt(judge, seconds=seconds, shrink_seconds=seconds, handed_at=0.0, shrink=ShrinkBudget())
    (found,) = caught(sent)
    assert found.observation.kind is Kind.HANG
    assert now <= seconds
    assert not found.ablated
    assert done.stopped_early
