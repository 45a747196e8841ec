"""A slice of kept cases: they are judged in order, and nothing is drawn."""

from typing import Any

from fake_search import LONG, FakeJudge, RejectingJudge, decode, fails_on_long, hunt, kv_lens, observed

from attnfuzz.harness.sandbox.confirm import FRESH_SEEDS
from attnfuzz.harness.search.messages import (
    AnyMessage,
    Caught,
    Lost,
    Rechecked,
    Replay,
    ShrinkBudget,
    SliceDone,
    SliceKind,
    Suspect,
)
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint


def replay(judge: FakeJudge, *replays: Replay, **task: Any) -> tuple[SliceDone, list[AnyMessage]]:
    return hunt(judge, kind=SliceKind.KEPT, index=None, examples=0, replays=replays, **task)


def test_kept_cases_are_judged_in_order_and_none_is_drawn() -> None:
    judge = FakeJudge(lambda _: ())
    cases = [decode(length) for length in (5, 70, 1)]
    done, _ = replay(judge, *(Replay(case=case) for case in cases))
    assert judge.judged == cases
    assert (done.tally.searched, done.tally.cases, done.stopped_early) == (0, 3, False)


def test_a_kept_case_that_fails_is_confirmed_reduced_and_caught() -> None:
    judge = FakeJudge(fails_on_long)
    _, sent = replay(judge, Replay(case=decode(3, 180, 7)))
    kinds = [type(message) for message in sent if isinstance(message, Suspect | Caught)]
    assert kinds == [Suspect, Caught]
    (caught,) = (message for message in sent if isinstance(message, Caught))
    assert caught.first == decode(3, 180, 7)
    assert kv_lens(caught.case) == [LONG]


def test_without_a_budget_a_kept_case_is_caught_as_it_is() -> None:
    _, sent = replay(FakeJudge(fails_on_long), Replay(case=decode(3, 180)), shrink=ShrinkBudget(runs=0, seconds=0.0))
    assert [message.case for message in sent if isinstance(message, Caught)] == [decode(3, 180)]


def test_the_next_case_follows_a_failure() -> None:
    def fails(lengths: list[int]) -> tuple[Observation, ...]:
        if max(lengths) < LONG:
            return ()
        return (observed(Kind.LSE_MISMATCH, "lse") if len(lengths) > 1 else observed(),)

    _, sent = replay(FakeJudge(fails), *(Replay(case=decode(*lengths)) for lengths in ((150,), (10,), (150, 150))))
    caught = [message.observation.kind for message in sent if isinstance(message, Caught)]
    assert caught == [Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH]


def test_a_bug_that_two_kept_cases_have_is_caught_once() -> None:
    _, sent = replay(FakeJudge(fails_on_long), Replay(case=decode(150)), Replay(case=decode(160)))
    assert len([message for message in sent if isinstance(message, Caught)]) == 1


def test_a_kept_case_that_fails_in_a_known_way_is_passed_over() -> None:
    known = (Fingerprint.of("fake", observed()),)
    _, sent = replay(FakeJudge(fails_on_long), Replay(case=decode(150)), known=known)
    assert not [message for message in sent if isinstance(message, Suspect)]


def test_a_kept_case_that_does_not_come_back_is_lost() -> None:
    _, sent = replay(FakeJudge(fails_on_long, comes_back=lambda _: False), Replay(case=decode(150)))
    assert [type(message) for message in sent if isinstance(message, Suspect | Lost | Caught)] == [Suspect, Lost]


def test_a_finding_that_fails_still_is_reported_with_how() -> None:
    judge = FakeJudge(fails_on_long)
    _, sent = replay(judge, Replay(case=decode(150), finding="name"))
    assert sent[0] == Rechecked(finding="name", observations=(observed(),), runs=1)
    assert (judge.judged, judge.confirmed) == ([], [decode(150)])
    assert not [message for message in sent if isinstance(message, Suspect | Caught)]


def test_a_finding_is_fixed_once_fresh_seeds_pass_too() -> None:
    judge = FakeJudge(lambda _: ())
    _, sent = replay(judge, Replay(case=decode(150), finding="name"))
    assert sent[0] == Rechecked(finding="name", observations=(), runs=1 + FRESH_SEEDS)
    assert len({case.seed for case in judge.confirmed}) == 1 + FRESH_SEEDS


def test_a_finding_that_fails_with_one_seed_of_several_is_not_fixed() -> None:
    _, sent = replay(
        FakeJudge(fails_on_long, comes_back=lambda case: case.seed == 2), Replay(case=decode(150), finding="name")
    )
    assert sent[0] == Rechecked(finding="name", observations=(observed(),), runs=3)


def test_kept_cases_end_when_the_time_is_up() -> None:
    judge = FakeJudge(lambda _: ())
    done, _ = replay(judge, Replay(case=decode(5)), Replay(case=decode(6), finding="name"), seconds=0.0)
    assert (judge.judged, judge.confirmed, done.tally.cases) == ([], [], 0)


def test_rejected_kept_cases_are_counted() -> None:
    done, _ = replay(RejectingJudge(), Replay(case=decode(5)))
    assert done.unsupported == {"no decode": 1}
