"""Shards: their budgets, and what they leave to others."""

import itertools
import math
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_search import FakeJudge, fake_cases, observed

from attnfuzz.harness.campaign.schedule import EXAMPLES_PER_SLICE
from attnfuzz.harness.findings.ledger import Ledger
from attnfuzz.harness.pytest import shard as shard_module
from attnfuzz.harness.pytest.shard import Claims, Shard, ShardFailure, UnconfirmedFailure
from attnfuzz.harness.search.accepted import Entry
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case

BACKEND = "fake"


def shard(index: int = 0, examples: float = 600.0, seconds: float = math.inf) -> Shard:
    return Shard(backend=BACKEND, index=index, seed=1, examples=examples, seconds=seconds)


def wrong(kv_lens: list[int]) -> tuple[Observation, ...]:
    """Two bugs: one of long requests, one of the others that are not empty."""
    return (observed(Kind.NOT_FINITE if max(kv_lens) > 20 else Kind.OUTPUT_MISMATCH),) if max(kv_lens) else ()


def wrong_here_and_there(kv_lens: list[int]) -> tuple[Observation, ...]:
    """One bug that shows in two places, and has the same features in both."""
    return (observed(place="out" if max(kv_lens) > 20 else "lse"),) if max(kv_lens) else ()


@pytest.fixture(autouse=True)
def _fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases are drawn from the fake backend's, and what fails is left in a folder of the test's own."""
    monkeypatch.setattr(shard_module, "drawn_cases", lambda *_: fake_cases())
    monkeypatch.setattr(shard_module, "resolve", lambda _: SimpleNamespace(capability=None))
    monkeypatch.chdir(tmp_path)


def search(searched: Shard, judge: FakeJudge, folder: Path, *known: Entry) -> list[ShardFailure]:
    test = f"test_fuzz[{searched.index}]"
    return searched.failures(judge, ledger=Ledger(known), claims=Claims(folder / "claims", test))


@pytest.mark.slow
def test_a_shard_searches_all_of_its_examples(tmp_path: Path) -> None:
    judge = FakeJudge(lambda _: ())
    assert search(shard(examples=600.0), judge, tmp_path) == []
    assert len(judge.judged) == 600


def test_slices_of_a_shard_draw_other_cases(tmp_path: Path) -> None:
    judge = FakeJudge(lambda _: ())
    search(shard(examples=500.0), judge, tmp_path)
    assert judge.judged[:250] != judge.judged[250:]


@pytest.mark.slow
def test_a_shard_ends_when_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_minute_per_look = itertools.count(step=60.0)
    monkeypatch.setattr(shard_module, "time", SimpleNamespace(monotonic=lambda: next(a_minute_per_look)))
    judge = FakeJudge(lambda _: ())
    assert search(shard(examples=math.inf, seconds=150.0), judge, tmp_path) == []
    assert len(judge.judged) == 2 * EXAMPLES_PER_SLICE


@pytest.mark.slow
def test_a_shard_goes_on_after_a_failure(tmp_path: Path) -> None:
    failures = search(shard(), FakeJudge(wrong), tmp_path)
    assert sorted(failure.name.split("-")[1] for failure in failures) == ["NotFinite", "OutputMismatch"]
    for failure in failures:
        assert failure.text.endswith(f"replay: attnfuzz replay .attnfuzz/{failure.name}.json")
        assert Path(f".attnfuzz/{failure.name}.json").exists()


@pytest.mark.slow
def test_a_shard_that_is_run_again_shows_the_same_again_and_another_passes_it_over(tmp_path: Path) -> None:
    first = search(shard(0), FakeJudge(wrong), tmp_path)
    assert first
    assert search(shard(0), FakeJudge(wrong), tmp_path) == first
    assert search(shard(1), FakeJudge(wrong), tmp_path) == []


@pytest.mark.slow
def test_a_bug_that_shows_in_two_places_is_shown_once(tmp_path: Path) -> None:
    assert len(search(shard(), FakeJudge(wrong_here_and_there), tmp_path)) == 1


def test_a_failure_that_the_ledger_knows_says_why(tmp_path: Path) -> None:
    entry = Entry(backend=BACKEND, kind=Kind.OUTPUT_MISMATCH, reason="the vendor knows")
    (failure,) = search(shard(), FakeJudge(wrong_here_and_there), tmp_path, entry)
    assert failure.known == "the vendor knows"


@pytest.mark.slow
def test_what_does_not_come_back_is_a_warning_and_reported_once(tmp_path: Path) -> None:
    def never(_: Case) -> bool:
        return False

    with warnings.catch_warnings(record=True, category=UnconfirmedFailure) as sent:
        warnings.simplefilter("always")
        judge = FakeJudge(lambda _: (observed(),), comes_back=never)
        assert search(shard(), judge, tmp_path) == []
    assert [str(warning.message) for warning in sent] == [f"unconfirmed: OutputMismatch at out in {BACKEND}"]


def test_a_failure_is_claimed_by_one_test_alone(tmp_path: Path) -> None:
    one, other = Claims(tmp_path, "one"), Claims(tmp_path, "other")
    fingerprint, elsewhere = (Fingerprint.of("b", observed(Kind.ILLEGAL_ACCESS, place)) for place in ("key", "value"))
    assert one.claim(fingerprint, "name")
    assert one.claim(fingerprint, "name")
    assert not other.claim(elsewhere, "the same fault at another place")
    assert not other.claim(Fingerprint.of("b", observed(Kind.HANG)), "name")
    assert other.claim(Fingerprint.of("b", observed(Kind.HANG)), "another")
    assert (one.of_others(), other.of_others()) == ({Fingerprint.of("b", observed(Kind.HANG))}, {fingerprint})
