"""The search for a defect: a campaign's slices, up to the first failure that comes back."""

import pytest
from fake_defect import defect
from fake_search import Fails, FakeJobs, FakeJudge, kv_lens, observed

from attnfuzz.harness.campaign.schedule import slices_of
from attnfuzz.harness.defects.search import NO_SHRINKING, Search, SearchOutcome, run_searches
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.kernels.defects.catalogue import backend_name

LONG = 100


def fails_on_long(lengths: list[int]) -> tuple[Observation, ...]:
    return (observed(Kind.ILLEGAL_ACCESS, "query"),) if max(lengths) >= LONG else ()


def passes(_: list[int]) -> tuple[Observation, ...]:
    return ()


def search(judge: FakeJudge, *, examples: int = 300, seed: int = 1, shrink: ShrinkBudget = NO_SHRINKING) -> Search:
    """A search that is over."""
    searched = Search(defect(), seed=seed, examples=examples, shrink=shrink)
    for _ in run_searches([searched], FakeJobs(judge)):
        pass
    assert searched.over
    return searched


def outcome(fails: Fails) -> SearchOutcome:
    return search(FakeJudge(fails)).outcome


def test_a_defect_is_killed_at_the_first_failure() -> None:
    judge = FakeJudge(fails_on_long)
    searched = search(judge)
    kill = searched.outcome.kill
    assert kill is not None
    assert (kill.by, kill.kind, kill.place, kill.mode, kill.also) == (
        "guards",
        Kind.ILLEGAL_ACCESS,
        "query",
        "decode",
        (),
    )
    assert searched.outcome.examples == len(judge.judged)
    assert [max(kv_lens(case)) >= LONG for case in judge.judged] == [False] * (len(judge.judged) - 1) + [True]


def test_what_else_fails_in_the_same_case_is_reported() -> None:
    def fails(lengths: list[int]) -> tuple[Observation, ...]:
        canary = observed(Kind.CANARY_OVERWRITTEN)
        return (*fails_on_long(lengths), observed(Kind.RAISED), canary) if max(lengths) >= LONG else ()

    kill = outcome(fails).kill
    assert kill is not None
    assert (kill.by, kill.also) == ("guards", ("exception",))


def test_a_survivor_is_searched_to_the_end() -> None:
    survived = outcome(passes)
    assert survived.kill is None
    assert (survived.examples, survived.unconfirmed) == (300, 0)


def test_what_does_not_come_back_kills_nothing_and_is_counted() -> None:
    judge = FakeJudge(fails_on_long, comes_back=lambda _: False)
    searched = search(judge)
    assert searched.outcome.kill is None
    assert searched.outcome.unconfirmed == len(judge.confirmed) > 0


def test_slices_are_those_of_a_campaign() -> None:
    jobs = FakeJobs(FakeJudge(passes))
    for _ in run_searches([Search(defect(), seed=5, examples=300)], jobs):
        pass
    wanted = slices_of(backend_name(defect()), examples=300, seed=5)
    for searched, task in zip(jobs.slices, wanted, strict=True):
        assert (searched.index, searched.seed, searched.examples) == (task.index, task.seed, task.examples)


def test_defects_and_seeds_have_cases_of_their_own() -> None:
    jobs = FakeJobs(FakeJudge(passes))
    searches = [Search(defect(name), seed=seed, examples=1) for name in ("one", "other") for seed in (1, 2)]
    for _ in run_searches(searches, jobs):
        pass
    assert len({task.seed for task in jobs.slices}) == len(searches)


def test_the_case_is_shrunk_if_there_is_a_budget() -> None:
    first = search(FakeJudge(fails_on_long)).caught
    shrunk = search(FakeJudge(fails_on_long), shrink=ShrinkBudget()).caught
    assert first is not None
    assert shrunk is not None
    assert first.case == first.first == shrunk.first
    assert kv_lens(shrunk.case) == [LONG]


@pytest.mark.draws
def test_other_failures_are_let_go() -> None:
    def fails(lengths: list[int]) -> tuple[Observation, ...]:
        return fails_on_long(lengths) or ((observed(),) if max(lengths) >= LONG // 2 else ())

    judge = FakeJudge(fails)
    searched = search(judge, shrink=ShrinkBudget())
    assert searched.caught is not None
    assert searched.caught.observation.kind is Kind.ILLEGAL_ACCESS
    assert any(LONG // 2 <= max(kv_lens(case)) < LONG for case in judge.judged)
    # What has another value seed may be a variant that is run to see which features the failure needs.
    assert all(max(kv_lens(case)) >= LONG for case in judge.confirmed if case.seed == 0)


def test_searches_take_turns_on_all_jobs() -> None:
    jobs = FakeJobs(FakeJudge(fails_on_long), count=2)
    searches = [Search(defect(name), seed=1, examples=300) for name in ("one", "two", "three", "four", "five")]
    over = [searched.defect.name for searched in run_searches(searches, jobs) if searched.over]
    assert sorted(over) == sorted(searched.defect.name for searched in searches)
    assert all(searched.caught for searched in searches)
