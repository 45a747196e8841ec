"""Failing examples are remembered: by later searches, on other machines, and at next to no cost."""

from contextlib import suppress
from functools import cache, partial

import pytest
from fake_search import FakeJudge, fake_cases, kv_lens, observed
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase, InMemoryExampleDatabase

from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.messages import AnyMessage, Caught, ShrinkBudget, Slice, SliceDone
from attnfuzz.harness.search.remembered import TRIED_PER_SLICE, Remembered
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case
from attnfuzz.strategies.lean import Lean

LONG = 100


def fails_on_long(lengths: list[int]) -> tuple[Observation, ...]:
    """Found at once."""
    return (observed(),) if max(lengths) >= LONG else ()


def fails_from(length: int, lengths: list[int]) -> tuple[Observation, ...]:
    return (observed(),) if lengths[0] >= length else ()


def hunt(judge: FakeJudge, remembered: Remembered | None, **task: object) -> tuple[SliceDone, list[AnyMessage]]:
    sent: list[AnyMessage] = []
    options: dict[str, object] = {"backend": "fake", "index": 0, "seed": 1, "examples": 200, **task}
    done = Hunt(Slice(**options), judge, sent.append, remembered=remembered).run(fake_cases())  # type: ignore[arg-type]
    return done, sent


@cache
def first_found() -> list[int]:
    """The lengths of the case in which `hunt` finds what fails on long ones."""
    _, sent = hunt(FakeJudge(fails_on_long), None)
    return next(kv_lens(message.first) for message in sent if isinstance(message, Caught))


def fails_on_the_first(lengths: list[int]) -> tuple[Observation, ...]:
    """The same bug, if it could be seen in that one case only."""
    return (observed(),) if lengths == first_found() else ()


def searched_until_caught(database: ExampleDatabase, **task: object) -> int | None:
    """Examples of another job on the same database; None if it finds nothing."""
    done, sent = hunt(FakeJudge(fails_on_the_first), Remembered(database), **{"seed": 2, "examples": 50, **task})
    return done.tally.searched if any(isinstance(message, Caught) for message in sent) else None


@pytest.fixture
def database() -> ExampleDatabase:
    """One in which a failure of the backend "fake" was left."""
    database = InMemoryExampleDatabase()
    _, sent = hunt(FakeJudge(fails_on_long), Remembered(database))
    assert any(isinstance(message, Caught) for message in sent)
    return database


def entries(database: ExampleDatabase) -> int:
    assert isinstance(database, InMemoryExampleDatabase)
    return sum(map(len, database.data.values()))


def test_without_a_database_a_short_search_finds_nothing() -> None:
    assert searched_until_caught(InMemoryExampleDatabase()) is None


def test_another_job_tries_what_failed_first(database: ExampleDatabase) -> None:
    assert searched_until_caught(database) == 1


def test_a_folder_remembers_too(tmp_path: object) -> None:
    database = DirectoryBasedExampleDatabase(f"{tmp_path}/examples")
    hunt(FakeJudge(fails_on_long), Remembered(database))
    assert searched_until_caught(DirectoryBasedExampleDatabase(f"{tmp_path}/examples")) == 1


@pytest.mark.parametrize("other", [{"backend": "another"}, {"lean": Lean(features=("mode=decode",))}])
def test_backends_and_leans_have_examples_of_their_own(database: ExampleDatabase, other: dict[str, object]) -> None:
    assert searched_until_caught(database, **other) is None


def test_one_failing_example_is_kept(database: ExampleDatabase) -> None:
    assert entries(database) == 1


def test_a_search_that_is_cut_short_leaves_what_failed() -> None:
    class Killed(BaseException):
        pass

    class CutShort(FakeJudge):
        def renew(self) -> None:
            if self.confirmed:
                raise Killed
            super().renew()

    database = InMemoryExampleDatabase()
    with suppress(Killed):
        hunt(CutShort(fails_on_long), Remembered(database))
    assert searched_until_caught(database) == 1


def test_a_known_failure_is_tried_once_by_a_job_and_stays_for_others(database: ExampleDatabase) -> None:
    known = (Fingerprint.of("fake", observed()),)
    remembered = Remembered(database)
    tried = []
    for seed in (3, 4):
        judge = FakeJudge(fails_on_the_first)
        done, sent = hunt(judge, remembered, known=known, seed=seed, examples=20)
        assert not any(isinstance(message, Caught) for message in sent)
        assert done.tally.searched == 20
        tried.append(sum(kv_lens(case) == first_found() for case in judge.judged))
    assert tried == [1, 0]
    assert searched_until_caught(database) == 1


def test_what_passes_now_is_forgotten(database: ExampleDatabase) -> None:
    hunt(FakeJudge(lambda _: ()), Remembered(database), examples=20)
    assert entries(database) == 0


@pytest.mark.slow
def test_old_examples_cost_a_few_runs_of_a_slice() -> None:
    database = InMemoryExampleDatabase()
    remembered = Remembered(database)
    for length in range(LONG, LONG + 3 * TRIED_PER_SLICE):
        hunt(FakeJudge(partial(fails_from, length)), remembered, seed=length)
    before = entries(database)
    assert before == 3 * TRIED_PER_SLICE
    hunt(FakeJudge(lambda _: ()), Remembered(database), examples=50)
    assert entries(database) == before - TRIED_PER_SLICE


def test_running_out_of_time_leaves_nothing() -> None:
    database = InMemoryExampleDatabase()
    done, _ = hunt(FakeJudge(lambda _: ()), Remembered(database), seconds=0.0)
    assert done.tally.searched == 0
    assert entries(database) == 0


def test_what_did_not_come_back_is_not_kept() -> None:
    database = InMemoryExampleDatabase()
    hunt(FakeJudge(fails_on_long, comes_back=lambda _: False), Remembered(database))
    assert entries(database) == 0


def test_a_slice_without_a_shrinking_budget_keeps_what_failed() -> None:
    database = InMemoryExampleDatabase()
    hunt(FakeJudge(fails_on_long), Remembered(database), shrink=ShrinkBudget(runs=0, seconds=0.0))
    assert entries(database) == 1


def test_the_environment_changes_nothing(database: ExampleDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(**task: object) -> list[Case]:
        judge = FakeJudge(fails_on_long)
        hunt(judge, Remembered(database), known=(Fingerprint.of("fake", observed()),), **{"examples": 50, **task})
        return judge.judged

    elsewhere = judged()
    monkeypatch.setenv("CI", "true")
    assert judged() == elsewhere


def test_other_kinds_are_remembered_as_well() -> None:
    def fails(lengths: list[int]) -> tuple[Observation, ...]:
        return (observed(Kind.ILLEGAL_ACCESS, "query"),) if max(lengths) >= LONG else ()

    database = InMemoryExampleDatabase()
    hunt(FakeJudge(fails), Remembered(database))
    assert entries(database) == 1
