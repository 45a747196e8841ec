"""The search for defects: a trial campaign, up to the first failure of each that comes back."""

from pathlib import Path

import pytest
from fake_campaign import begin, plan
from fake_defect import defect
from fake_search import Fails, FakeJobs, FakeJudge, kv_lens, observed
from msgspec.structs import replace

from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.defects.search import SearchOutcome, filed_for, is_over, killer, outcome_of
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.kernels.defects.catalogue import backend_name

LONG = 100


def fails_on_long(lengths: list[int]) -> tuple[Observation, ...]:
    return (observed(Kind.ILLEGAL_ACCESS, "query"),) if max(lengths) >= LONG else ()


def passes(_: list[int]) -> tuple[Observation, ...]:
    return ()


def search(
    folder: Path, jobs: FakeJobs, *names: str, examples: int = 300, seed: int = 1, shrink: float = 0.0
) -> Standing:
    """Where a trial of defects of these names ends."""
    backends = tuple(backend_name(defect(name)) for name in names or ("some",))
    asked = plan(folder, examples=examples, backends=backends, jobs=jobs.count, seed=seed, trial=shrink)
    return Standing.of(begin(asked, jobs).events())


def outcome(folder: Path, fails: Fails) -> SearchOutcome:
    return outcome_of(defect(), search(folder, FakeJobs(FakeJudge(fails))))


def test_a_defect_is_killed_at_the_first_failure(tmp_path: Path) -> None:
    judge = FakeJudge(fails_on_long)
    standing = search(tmp_path, FakeJobs(judge))
    found = outcome_of(defect(), standing)
    assert is_over(defect(), standing)
    assert found.kill is not None
    assert (found.kill.by, found.kill.kind, found.kill.place, found.kill.mode, found.kill.also) == (
        "guards",
        Kind.ILLEGAL_ACCESS,
        "query",
        "decode",
        (),
    )
    assert found.examples == len(judge.judged)
    assert [max(kv_lens(case)) >= LONG for case in judge.judged] == [False] * (len(judge.judged) - 1) + [True]


def test_other_failures_of_the_same_case_are_reported(tmp_path: Path) -> None:
    def fails(lengths: list[int]) -> tuple[Observation, ...]:
        canary = observed(Kind.CANARY_OVERWRITTEN)
        return (*fails_on_long(lengths), observed(Kind.RAISED), canary) if max(lengths) >= LONG else ()

    kill = outcome(tmp_path, fails).kill
    assert kill is not None
    assert (kill.by, kill.also) == ("guards", ("exception",))


def test_a_survivor_is_searched_to_the_end(tmp_path: Path) -> None:
    survived = outcome(tmp_path, passes)
    assert survived.kill is None
    assert (survived.examples, survived.unconfirmed) == (300, 0)


def test_an_unconfirmed_failure_kills_no_defect_and_is_counted(tmp_path: Path) -> None:
    judge = FakeJudge(fails_on_long, comes_back=lambda _: False)
    found = outcome_of(defect(), search(tmp_path, FakeJobs(judge)))
    assert found.kill is None
    assert found.unconfirmed == len(judge.confirmed) > 0


def test_defects_and_seeds_have_cases_of_their_own(tmp_path: Path) -> None:
    jobs = FakeJobs(FakeJudge(passes))
    for seed in (1, 2):
        search(tmp_path / str(seed), jobs, "one", "other", examples=1, seed=seed)
    assert len({task.seed for task in jobs.slices}) == len(jobs.slices) == 4


def test_the_case_is_shrunk_if_there_is_time_for_it(tmp_path: Path) -> None:
    first = filed_for(defect(), search(tmp_path / "first", FakeJobs(FakeJudge(fails_on_long))))
    shrunk = filed_for(defect(), search(tmp_path / "shrunk", FakeJobs(FakeJudge(fails_on_long)), shrink=40.0))
    assert first is not None
    assert shrunk is not None
    assert kv_lens(first.case) != kv_lens(shrunk.case) == [LONG]


@pytest.mark.draws
def test_other_failures_are_let_go(tmp_path: Path) -> None:
    def fails(lengths: list[int]) -> tuple[Observation, ...]:
        return fails_on_long(lengths) or ((observed(),) if max(lengths) >= LONG // 2 else ())

    judge = FakeJudge(fails)
    filed = filed_for(defect(), search(tmp_path, FakeJobs(judge), shrink=40.0))
    assert filed is not None
    assert filed.observation.kind is Kind.ILLEGAL_ACCESS
    assert any(LONG // 2 <= max(kv_lens(case)) < LONG for case in judge.judged)
    # What has another value seed may be a variant that is run to see which features the failure needs.
    assert all(max(kv_lens(case)) >= LONG for case in judge.confirmed if case.seed == 0)


def test_a_defect_is_searched_by_one_job_at_a_time(tmp_path: Path) -> None:
    jobs = FakeJobs(FakeJudge(passes), count=2)
    standing = search(tmp_path, jobs, examples=300)
    assert [task.examples for task in jobs.slices] == [250, 50]
    assert outcome_of(defect(), standing).examples == 300


def test_searches_take_turns_on_all_jobs(tmp_path: Path) -> None:
    names = ("one", "two", "three", "four", "five")
    standing = search(tmp_path, FakeJobs(FakeJudge(fails_on_long), count=2), *names)
    assert all(filed_for(defect(name), standing) for name in names)


def test_a_trial_keeps_no_case(tmp_path: Path) -> None:
    search(tmp_path, FakeJobs(FakeJudge(fails_on_long)))
    assert not (tmp_path / "corpus").exists()


KILLERS = {
    Kind.ILLEGAL_ACCESS: "guards",
    Kind.MISALIGNED: "guards",
    Kind.CANARY_OVERWRITTEN: "guards",
    Kind.INPUT_MUTATED: "guards",
    Kind.RAISED: "exception",
    Kind.UNEXPECTED_REJECTION: "exception",
    Kind.HANG: "watchdog",
    Kind.WORKER_DIED: "worker",
    Kind.CONTRACT_BROKEN: "contract",
}


@pytest.mark.parametrize("kind", Kind)
def test_every_failure_has_a_killer(kind: Kind) -> None:
    seen = observed(kind)
    if kind in KILLERS:
        assert killer(seen) == KILLERS[kind]
    else:
        assert killer(replace(seen, tier="T2")) == "T2"
