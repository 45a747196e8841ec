"""A slice of the search: what is pinned, shrunk, confirmed, passed over and set aside."""

from functools import partial
from typing import Any

import pytest
from fake_search import (
    LONG,
    FakeJudge,
    RejectingJudge,
    caught,
    decode,
    fails_on_long,
    fake_cases,
    hunt,
    kv_lens,
    observed,
    of_steps,
)
from msgspec.structs import replace

from attnfuzz.harness.search.examples import AT_ONCE, run_examples
from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import (
    FAILS_ALONE,
    AnyMessage,
    Gap,
    Lost,
    Replay,
    ShrinkBudget,
    Slice,
    Suspect,
)
from attnfuzz.harness.search.slice_time import SliceTime
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case
from attnfuzz.reference.related import related
from attnfuzz.reference.relation import Relation


def fails_in_two_ways(lengths: list[int]) -> tuple[Observation, ...]:
    """Long KV is an output mismatch, a long tail of several requests an LSE mismatch."""
    if len(lengths) >= 2 and lengths[-1] >= LONG:
        return (observed(Kind.LSE_MISMATCH, "lse"),)
    return fails_on_long(lengths)


def test_a_clean_backend_is_searched_to_the_end() -> None:
    judge = FakeJudge(lambda _: ())
    done, sent = hunt(judge)
    assert (done.tally.searched, done.tally.cases, done.stopped_early) == (200, 200, False)
    assert not caught(sent)


@pytest.mark.parametrize("examples", [1, AT_ONCE - 1, AT_ONCE, 2 * AT_ONCE + 3])
def test_cases_drawn_together_are_all_judged_in_their_order(examples: int) -> None:
    judge, drawn = FakeJudge(lambda _: ()), list[Case]()
    run_examples(fake_cases(), drawn.append, examples=examples, seed_of=1)
    done, _ = hunt(judge, examples=examples)
    assert judge.judged == drawn
    assert done.tally.searched == len(drawn) == examples


def test_no_drawn_case_is_judged_after_a_new_failure() -> None:
    drawn: list[Case] = []
    run_examples(fake_cases(), drawn.append, examples=200, seed_of=1)
    first = next(number for number, case in enumerate(drawn, start=1) if fails_on_long(kv_lens(case)))
    done, _ = hunt(FakeJudge(fails_on_long))
    assert first % AT_ONCE
    assert (done.tally.searched, done.stopped_early) == (first, True)


def test_a_failure_is_shrunk_to_the_smallest_case() -> None:
    _, sent = hunt(FakeJudge(fails_on_long))
    (found,) = caught(sent)
    assert kv_lens(found.case) == [LONG]
    assert found.observation == observed()
    assert found.verdict.failures == (observed(),)


@pytest.mark.parametrize("seconds", [None, 0.0])
def test_a_caught_failure_is_explained_once_while_there_is_time(seconds: float | None) -> None:
    asked: list[Case] = []

    def explained(case: Case, verdict: Verdict) -> Verdict:
        asked.append(case)
        return replace(verdict, observations=tuple(replace(each, message="why") for each in verdict.observations))

    sent: list[AnyMessage] = []
    task = Slice(backend="fake", index=0, seed=1, examples=200, shrink_seconds=seconds)
    Hunt(task, FakeJudge(fails_on_long), sent.append, explained=explained).run(fake_cases())
    (found,) = caught(sent)
    assert asked == ([found.case] if seconds is None else [])
    assert (found.observation.message == "why") == (seconds is None)
    assert found.verdict.failures[0] == found.observation


def test_a_suspect_is_sent_before_it_is_shrunk() -> None:
    _, sent = hunt(FakeJudge(fails_on_long))
    suspect = next(message for message in sent if isinstance(message, Suspect))
    assert caught(sent)[0].first == suspect.case
    assert kv_lens(suspect.case) != [LONG]


def test_shrinking_stays_with_the_failure_that_was_pinned() -> None:
    _, sent = hunt(FakeJudge(fails_in_two_ways), seed=3)
    for found in caught(sent):
        expected = [LONG] if found.observation.kind is Kind.OUTPUT_MISMATCH else [0, LONG]
        assert kv_lens(found.case)[-len(expected) :] == expected


def test_another_failure_seen_while_shrinking_is_caught_afterwards() -> None:
    kinds = set()
    for seed in range(5):
        _, sent = hunt(FakeJudge(fails_in_two_ways), seed=seed)
        kinds.add(tuple(found.observation.kind for found in caught(sent)))
    assert any(set(found) == {Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH} for found in kinds)


def test_known_failures_are_passed_over() -> None:
    known = (Fingerprint.of("fake", observed()),)
    done, sent = hunt(FakeJudge(fails_on_long), known=known)
    assert not caught(sent)
    assert done.tally.searched == 200


def test_cases_that_fail_as_another_job_is_settling_are_left_to_it() -> None:
    """Their other failures may have the same cause, which is not known yet."""

    def fails(lengths: list[int]) -> tuple[Observation, ...]:
        wrong = (*fails_on_long(lengths), observed(Kind.LSE_MISMATCH, "lse"))
        return wrong if len(wrong) > 1 else (observed(Kind.EMPTY_ROW, "empty rows"),) * (min(lengths) == 0)

    held = (Fingerprint.of("fake", observed()),)
    _, sent = hunt(FakeJudge(fails), held=held)
    assert [found.observation.kind for found in caught(sent)] == [Kind.EMPTY_ROW]
    assert {each.fingerprint.kind for each in sent if isinstance(each, Suspect)} == {Kind.EMPTY_ROW}
    done, sent = hunt(FakeJudge(fails_on_long), held=held)
    assert not caught(sent)
    assert done.tally.searched == 200


def test_an_unconfirmed_suspect_is_lost_and_the_search_goes_on() -> None:
    judge = FakeJudge(fails_on_long, comes_back=lambda _: False)
    done, sent = hunt(judge)
    assert [type(message) for message in sent if isinstance(message, Suspect | Lost)] == [Suspect, Lost]
    assert not caught(sent)
    assert (done.tally.searched, done.stopped_early) == (200, False)


def only_unshrunk(case: Case) -> bool:
    return kv_lens(case) != [LONG]


def test_a_smallest_case_that_does_not_come_back_gives_way_to_the_first() -> None:
    def fails(lengths: list[int]) -> tuple[Observation, ...]:
        return (observed(Kind.UNWRITTEN),) if fails_on_long(lengths) else ()

    _, sent = hunt(FakeJudge(fails, comes_back=only_unshrunk))
    (found,) = caught(sent)
    assert found.case == found.first


def test_a_smaller_case_that_fails_with_one_seed_alone_is_not_taken() -> None:
    _, sent = hunt(FakeJudge(fails_on_long, comes_back=only_unshrunk))
    (found,) = caught(sent)
    assert found.case != found.first
    assert kv_lens(found.case) == [LONG + 1]


def test_a_judge_that_changes_its_mind_does_not_upset_the_search() -> None:
    class Fickle(FakeJudge):
        def verdict(self, case: Case) -> Verdict:
            verdict = super().verdict(case)
            return verdict if len(self.judged) % 3 else Verdict()

    _, sent = hunt(Fickle(fails_on_long))
    (found,) = caught(sent)
    assert max(kv_lens(found.case)) >= LONG


@pytest.mark.parametrize("budget", [ShrinkBudget(runs=0, seconds=60), ShrinkBudget(runs=1000, seconds=0)])
def test_a_spent_budget_ends_shrinking_where_it_is(budget: ShrinkBudget) -> None:
    judge = FakeJudge(fails_on_long)
    done, sent = hunt(judge, shrink=budget)
    (found,) = caught(sent)
    assert found.case == found.first
    assert len(judge.judged) == done.tally.searched


@pytest.mark.parametrize("budget", [ShrinkBudget(runs=0, seconds=0), ShrinkBudget(runs=1000, seconds=0)])
def test_without_a_budget_nothing_is_drawn_to_shrink(budget: ShrinkBudget) -> None:
    drawn: list[Case] = []

    def remember(case: Case) -> Case:
        drawn.append(case)
        return case

    done, _ = hunt(FakeJudge(fails_on_long), fake_cases().map(remember), shrink=budget)
    # The failing case is one of those that were drawn together.
    assert done.tally.searched <= len(drawn) < done.tally.searched + AT_ONCE


def test_gaps_are_reported_once_and_fail_nothing() -> None:
    done, sent = hunt(FakeJudge(lambda _: (observed(gap=True),)))
    assert [type(message) for message in sent if isinstance(message, Gap | Suspect)] == [Gap]
    assert done.tally.searched == 200


def test_rejections_are_counted_by_their_message() -> None:
    done, _ = hunt(RejectingJudge(), examples=50)
    assert done.unsupported == {"no decode": 50}
    assert (done.tally.searched, done.tally.unsupported, done.tally.cases) == (0, 50, 0)


def test_a_slice_ends_when_its_time_is_up() -> None:
    done, _ = hunt(FakeJudge(lambda _: ()), seconds=0.0)
    assert done.tally.searched == 0


def test_a_slice_tells_how_many_cases_it_came_to(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tuple(Replay(case=decode(length)) for length in (1, 2, 3))
    assert hunt(FakeJudge(lambda _: ()), replays=kept)[0].replayed == 3
    judge = FakeJudge(lambda _: ())
    monkeypatch.setattr(SliceTime, "is_up", property(lambda _: len(judge.judged) == 2))
    assert hunt(judge, replays=kept)[0].replayed == 2


def _has_confirmed(judge: FakeJudge, _: SliceTime) -> bool:
    return bool(judge.confirmed)


def test_another_failure_seen_while_shrinking_stays_a_suspect_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sent_about = set()
    for seed in range(5):
        judge = FakeJudge(fails_in_two_ways)
        monkeypatch.setattr(SliceTime, "is_up", property(partial(_has_confirmed, judge)))
        _, sent = hunt(judge, seed=seed)
        kinds = [message.fingerprint.kind for message in sent if isinstance(message, Suspect)]
        assert [found.fingerprint.kind for found in caught(sent)] == kinds[:1]
        assert [message.left_over for message in sent if isinstance(message, Suspect)] == [False, True][: len(kinds)]
        sent_about.add(tuple(kinds))
    assert any(set(kinds) == {Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH} for kinds in sent_about)


class JudgeOfRelated(FakeJudge):
    """Judges the case that is run, and whether a related one gives the same answer."""

    def verdict(self, case: Case) -> Verdict:
        own = Verdict(observations=self._fails(kv_lens(case)), rows=1)
        if own.failures or case.relation is None or not self._fails(kv_lens(related(case).case)):
            return own
        return Verdict(observations=(observed(Kind.METAMORPHIC_MISMATCH),), rows=1)


def in_company(lengths: list[int]) -> tuple[Observation, ...]:
    return (observed(Kind.LSE_MISMATCH, "lse"),) if len(lengths) > 2 else ()


DIFFER = observed(Kind.METAMORPHIC_MISMATCH)


@pytest.mark.parametrize("awaited", [(), (DIFFER,)])
def test_two_runs_that_differ_because_one_fails_alone_are_that_failure(awaited: tuple[Observation, ...]) -> None:
    case = replace(decode(3, 5), relation=Relation.REQUEST_APPENDED)
    _, sent = hunt(JudgeOfRelated(in_company), replays=(Replay(case=case, failed=awaited),))
    (alone,) = caught(sent)
    assert alone.observation.kind is Kind.LSE_MISMATCH
    lost = [(each.fingerprint.kind, each.reason) for each in sent if isinstance(each, Lost)]
    assert lost == [(Kind.METAMORPHIC_MISMATCH, FAILS_ALONE) for _ in awaited]


class DyingInTheRelatedRun(FakeJudge):
    """A related run that fails ends its worker."""

    def verdict(self, case: Case) -> Verdict:
        if self._fails(kv_lens(case)):
            return Verdict(observations=(observed(Kind.ILLEGAL_ACCESS, "kv_cache"),))
        dies = case.relation is not None and bool(self._fails(kv_lens(related(case).case)))
        fault = replace(observed(Kind.ILLEGAL_ACCESS, "kv_cache"), related=True)
        return Verdict(observations=(fault,) if dies else (), rows=1)


def test_a_death_in_the_related_run_is_that_of_the_related_case() -> None:
    case = replace(decode(3, 5), relation=Relation.REQUEST_APPENDED)
    _, sent = hunt(DyingInTheRelatedRun(in_company), replays=(Replay(case=case),))
    assert {of_steps(each.first).relation for each in caught(sent)} == {None}


def test_two_runs_that_differ_though_both_pass_alone_have_a_separate_cause() -> None:
    class Differing(FakeJudge):
        def verdict(self, case: Case) -> Verdict:
            return Verdict(observations=(DIFFER,) if case.relation else (), rows=1)

    case = replace(decode(3, 5), relation=Relation.REQUEST_APPENDED)
    (found,) = caught(hunt(Differing(lambda _: ()), replays=(Replay(case=case, failed=(DIFFER,)),))[1])
    assert found.observation.kind is Kind.METAMORPHIC_MISMATCH
    assert not found.cause


MUTATED, WRONG = observed(Kind.INPUT_MUTATED, "query"), observed(Kind.LSE_MISMATCH, "lse")


def test_a_failure_that_stands_behind_a_known_one_in_all_cases_is_found() -> None:
    def fails(lengths: list[int]) -> tuple[Observation, ...]:
        return (MUTATED, WRONG) if len(lengths) > 1 else (MUTATED,)

    judge = FakeJudge(fails)
    mutated, wrong = caught(hunt(judge, replays=(Replay(case=decode(3, 5)),))[1])
    assert (mutated.observation, wrong.observation) == (MUTATED, WRONG)
    assert (len(kv_lens(mutated.case)), len(kv_lens(wrong.case))) == (1, 2)
    assert not wrong.cause


def test_a_symptom_that_the_smallest_case_of_a_known_cause_has_too_is_not_settled_beside_it() -> None:
    judge = FakeJudge(lambda _: (MUTATED, WRONG))
    known = KnownCause(name="known", case=decode(1), fingerprint=Fingerprint.of("fake", MUTATED))
    task: dict[str, Any] = {"known": (known.fingerprint,), "causes": (known,)}
    assert caught(hunt(judge, replays=(Replay(case=decode(3, 5)),), **task)[1]) == []


def test_a_failure_with_the_features_of_a_symptom_is_no_other_one() -> None:
    """The smallest case of the cause needs sinks; that of a symptom needs a request without keys instead."""
    judge = FakeJudge(lambda _: (WRONG,))
    fingerprint = Fingerprint.of("fake", WRONG)
    known = KnownCause(
        name="known", case=decode(1), fingerprint=fingerprint, needs=("sinks",), shown_with=(("empty KV",),)
    )
    task: dict[str, Any] = {"known": (fingerprint,), "causes": (known,)}
    assert caught(hunt(judge, replays=(Replay(case=decode(3, 0)),), **task)[1]) == []
    assert caught(hunt(judge, replays=(Replay(case=decode(3, 5)),), **task)[1])


def test_a_suspect_beside_a_known_failure_is_settled() -> None:
    judge = FakeJudge(lambda _: (MUTATED, WRONG))
    known = KnownCause(name="known", case=decode(1), fingerprint=Fingerprint.of("fake", MUTATED))
    replays = (Replay(case=decode(3, 5), failed=(WRONG,)),)
    (found,) = caught(hunt(judge, replays=replays, known=(known.fingerprint,), causes=(known,))[1])
    assert found.observation == WRONG


def test_an_error_of_the_judge_is_raised_and_not_shrunk() -> None:
    class Broken(FakeJudge):
        def verdict(self, case: Case) -> Verdict:
            self.judged.append(case)
            raise RuntimeError("the nursery is gone")

    judge = Broken(lambda _: ())
    with pytest.raises(RuntimeError, match="the nursery is gone"):
        hunt(judge)
    assert len(judge.judged) == 1


def test_the_same_seed_searches_the_same_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    first, again, other = (FakeJudge(lambda _: ()) for _ in range(3))
    hunt(first, seed=7)
    hunt(again, seed=7)
    hunt(other, seed=8)
    assert first.judged == again.judged
    assert first.judged != other.judged


def test_a_fault_stays_the_same_failure_wherever_it_lands() -> None:
    def fails(lengths: list[int]) -> tuple[Observation, ...]:
        place = "query" if max(lengths) > LONG else "seq_lens"
        return (observed(Kind.ILLEGAL_ACCESS, place),) if max(lengths) >= LONG else ()

    _, sent = hunt(FakeJudge(fails))
    assert caught(sent)[0].fingerprint.place == "query"
    assert [kv_lens(found.case) for found in caught(sent)] == [[LONG]] * len(caught(sent))


def test_a_wrong_output_at_another_place_is_another_failure() -> None:
    def fails(lengths: list[int]) -> tuple[Observation, ...]:
        place = "out" if max(lengths) > LONG else "padded rows"
        return (observed(Kind.NOT_FINITE, place),) if max(lengths) >= LONG else ()

    _, sent = hunt(FakeJudge(fails))
    assert caught(sent)[0].fingerprint.place == "out"
    assert kv_lens(caught(sent)[0].case) == [LONG + 1]
