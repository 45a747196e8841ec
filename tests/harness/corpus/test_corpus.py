"""The corpus: what is kept, in which order it comes back, and what survives."""

import json
import os
from pathlib import Path

import pytest
from damage import fill_the_disk
from fake_search import of_steps
from harness_cases import CALLS, decode_case
from msgspec.structs import replace
from small_cases import drawn

from attnfuzz.harness.corpus import Corpus, CorpusError, Why
from attnfuzz.harness.corpus.corpus import HOLDERS
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Case
from attnfuzz.strategies.coverage import Pair, pairs_of

BACKEND = "trtllm_mha"
SMALL = decode_case(BACKEND, 3, padded=1)
LARGE = decode_case(BACKEND)


def reached(*cases: AnyCase) -> set[Pair]:
    return {pair for case in cases for pair in pairs_of(of_steps(case))}


def keep_for_coverage(corpus: Corpus, *cases: Case) -> list[str]:
    return corpus.keep_for_coverage(corpus.needed(cases))


def index_of(folder: Path) -> Path:
    return folder / "index.ndjson"


def test_a_kept_case_is_a_case_file_that_is_found_again(tmp_path: Path) -> None:
    assert Corpus(tmp_path).keep(LARGE, why=Why.FAILURE)
    (path,) = tmp_path.glob("*/*.json")
    assert path == tmp_path / BACKEND / f"{case_file.case_id(LARGE)}.json"
    assert case_file.load(path) == LARGE
    assert Corpus(tmp_path).replays(BACKEND) == [LARGE]


def test_opening_makes_nothing(tmp_path: Path) -> None:
    assert Corpus(tmp_path / "corpus").replays(BACKEND) == []
    assert not (tmp_path / "corpus").exists()


def test_a_failure_is_kept_once(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    assert corpus.keep(LARGE, why=Why.FAILURE)
    assert not corpus.keep(LARGE, why=Why.FAILURE)
    assert not corpus.keep(LARGE, why=Why.ADDED)
    assert not Corpus(tmp_path).keep(LARGE, why=Why.FAILURE)


def test_a_case_that_was_kept_for_less_and_fails_is_a_failure(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.keep(SMALL, why=Why.MARGIN, margins={"T1": 0.5})
    assert corpus.keep(SMALL, why=Why.FAILURE)
    (kept,) = Corpus(tmp_path).kept()
    assert kept.entry.why is Why.FAILURE


def test_coverage_is_kept_while_it_is_new(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    assert keep_for_coverage(corpus, LARGE)
    assert not keep_for_coverage(corpus, LARGE)
    assert not keep_for_coverage(Corpus(tmp_path), LARGE)


def test_pairs_reached_by_one_backend_are_new_for_another(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    keep_for_coverage(corpus, LARGE)
    assert keep_for_coverage(corpus, replace(LARGE, backend="torch_sdpa"))


def test_few_cases_are_kept_for_all_pairs(tmp_path: Path) -> None:
    cases = drawn(BACKEND, 5)
    alike = [replace(case, seed=case.seed + 1) for case in cases]
    assert len(keep_for_coverage(Corpus(tmp_path), *cases, *alike)) <= len(cases)
    assert reached(*cases) == reached(*Corpus(tmp_path).replays(BACKEND))


def test_a_case_is_written_once(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.keep(LARGE, why=Why.MARGIN, margins={"T1": 0.9})
    assert corpus.keep_for_coverage([LARGE, SMALL]) == [case_file.case_id(SMALL)]
    assert [kept.entry.margins for kept in Corpus(tmp_path).kept() if kept.case == LARGE] == [{"T1": 0.9}]


def test_a_record_margin_is_kept_as_it_is(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    keep_for_coverage(corpus, LARGE)
    seeded = replace(LARGE, seed=7)
    assert corpus.keep(seeded, why=Why.MARGIN, margins={"T1": 0.9})
    assert seeded in Corpus(tmp_path).replays(BACKEND)


def test_a_margin_that_is_no_record_is_not_kept(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    for seed in range(HOLDERS):
        assert corpus.keep(replace(LARGE, seed=seed), why=Why.MARGIN, margins={"T1": 0.5})
    for known in corpus, Corpus(tmp_path):
        assert not known.keep(replace(LARGE, seed=99), why=Why.MARGIN, margins={"T1": 0.4})


def test_a_margin_that_was_beaten_leaves(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    for seed in range(HOLDERS + 2):
        corpus.keep(replace(LARGE, seed=seed), why=Why.MARGIN, margins={"T1": seed / 10})
    for known in corpus, Corpus(tmp_path):
        assert {of_steps(kept.case).seed for kept in known.kept()} == set(range(2, HOLDERS + 2))


@pytest.mark.parametrize("why", [Why.FAILURE, Why.COVERAGE])
def test_a_case_that_was_kept_for_something_else_does_not_leave_with_its_record(tmp_path: Path, why: Why) -> None:
    corpus = Corpus(tmp_path)
    keep_for_coverage(corpus, LARGE) if why is Why.COVERAGE else corpus.keep(LARGE, why=why)
    (first,) = corpus.kept()
    for seed in range(HOLDERS + 1):
        corpus.keep(first.case.having(seed=seed), why=Why.MARGIN, margins={"T1": (seed + 1) / 10})
    assert why in {kept.entry.why for kept in Corpus(tmp_path).kept()}


def test_pairs_of_a_case_with_a_beaten_margin_are_new_again(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.keep(LARGE, why=Why.MARGIN, margins={"T1": 0.1})
    assert not keep_for_coverage(corpus, LARGE)
    for seed in range(HOLDERS):
        corpus.keep(replace(SMALL, seed=seed), why=Why.MARGIN, margins={"T1": 0.5})
    assert keep_for_coverage(corpus, LARGE)


def test_of_many_results_the_largest_margins_are_kept(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.keep(replace(LARGE, seed=9), why=Why.MARGIN, margins={"T1": 0.55})
    found = [(replace(LARGE, seed=seed), {"T1": seed / 10}) for seed in (3, 7, 4, 8, 1)]
    assert corpus.keep_records(found) == [case_file.case_id(replace(LARGE, seed=seed)) for seed in (7, 8)]
    for known in corpus, Corpus(tmp_path):
        assert {of_steps(kept.case).seed for kept in known.kept()} == {7, 8, 9}


def test_failures_alone_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus(tmp_path)
    keep_for_coverage(corpus, LARGE)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    corpus.keep_for_coverage([SMALL])
    corpus.keep(replace(LARGE, seed=1), why=Why.MARGIN, margins={"T1": 0.9})
    assert not synced
    corpus.keep(replace(LARGE, seed=2), why=Why.FAILURE)
    assert len(synced) == len(("the case", "its folder", "the index"))


def test_a_case_that_holds_another_record_stays(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.keep(replace(LARGE, seed=100), why=Why.MARGIN, margins={"T1": 0.1, "T2": 0.9})
    for seed in range(HOLDERS):
        corpus.keep(replace(LARGE, seed=seed), why=Why.MARGIN, margins={"T1": 0.5})
    assert 100 in {of_steps(kept.case).seed for kept in corpus.kept()}


def test_an_error_without_bound_is_no_record(tmp_path: Path) -> None:
    assert not Corpus(tmp_path).keep(LARGE, why=Why.MARGIN, margins={"T1": float("inf"), "T2": float("nan")})


def test_failures_come_first_and_margins_before_coverage(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    keep_for_coverage(corpus, LARGE)
    low, high = (replace(LARGE, seed=seed) for seed in (1, 2))
    corpus.keep(low, why=Why.MARGIN, margins={"T1": 0.2})
    corpus.keep(high, why=Why.MARGIN, margins={"T1": 0.8})
    corpus.keep(SMALL, why=Why.FAILURE)
    assert Corpus(tmp_path).replays(BACKEND)[:3] == [SMALL, high, low]


def test_a_replay_that_adds_nothing_is_left_out(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    keep_for_coverage(corpus, LARGE)
    assert len(corpus.replays(BACKEND)) == 1
    corpus.keep(LARGE, why=Why.FAILURE)
    assert corpus.replays(BACKEND) == [LARGE]


def test_a_case_that_a_person_put_there_is_run(tmp_path: Path) -> None:
    Corpus(tmp_path).keep(LARGE, why=Why.FAILURE)
    (tmp_path / "mine").mkdir()
    case_file.save(tmp_path / "mine" / "case.json", SMALL)
    corpus = Corpus(tmp_path)
    assert corpus.replays(BACKEND) == [LARGE, SMALL]
    assert {kept.entry.why for kept in corpus.kept()} == {Why.FAILURE, Why.ADDED}


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": "attnfuzz-case", "version": 99}', b"[1]"])
def test_a_broken_file_is_passed_over_and_reported(tmp_path: Path, content: bytes) -> None:
    Corpus(tmp_path).keep(LARGE, why=Why.FAILURE)
    (tmp_path / BACKEND / "broken.json").write_bytes(content)
    corpus = Corpus(tmp_path)
    assert corpus.replays(BACKEND) == [LARGE]
    (trouble,) = corpus.troubles
    assert "broken.json" in trouble
    assert "\n" not in trouble


def test_a_case_made_of_calls_is_passed_over_and_reported(tmp_path: Path) -> None:
    Corpus(tmp_path).keep(LARGE, why=Why.FAILURE)
    case_file.save(tmp_path / BACKEND / "calls.json", CALLS)
    corpus = Corpus(tmp_path)
    assert corpus.replays(BACKEND) == [LARGE]
    assert "literal calls" in corpus.troubles[0]


def test_a_torn_index_costs_the_reason_and_not_the_case(tmp_path: Path) -> None:
    Corpus(tmp_path).keep(LARGE, why=Why.FAILURE)
    index = index_of(tmp_path)
    index.write_bytes(index.read_bytes()[:-10])
    corpus = Corpus(tmp_path)
    assert corpus.replays(BACKEND) == [LARGE]
    assert len(corpus.troubles) == 1
    corpus.keep(SMALL, why=Why.FAILURE)
    assert [kept.entry.why for kept in Corpus(tmp_path).kept() if kept.case == SMALL] == [Why.FAILURE]


def test_a_line_that_a_full_disk_cut_off_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus(tmp_path)
    corpus.keep(LARGE, why=Why.FAILURE)
    fill_the_disk(monkeypatch, room=20)
    with pytest.raises(OSError, match="No space"):
        corpus.keep(SMALL, why=Why.FAILURE)
    monkeypatch.undo()
    corpus.keep(SMALL, why=Why.FAILURE)
    again = Corpus(tmp_path)
    assert {kept.entry.why for kept in again.kept()} == {Why.FAILURE}
    assert len(again.kept()) == 2
    assert len(again.troubles) == 1


def test_a_deleted_case_leaves_no_error(tmp_path: Path) -> None:
    Corpus(tmp_path).keep(LARGE, why=Why.FAILURE)
    next(tmp_path.glob("*/*.json")).unlink()
    corpus = Corpus(tmp_path)
    assert (corpus.replays(BACKEND), corpus.troubles) == ([], [])


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(CorpusError, match="is not a corpus"):
        Corpus(tmp_path)


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(CorpusError, match="is a file"):
        Corpus(tmp_path / "taken")


def test_a_foreign_index_is_refused(tmp_path: Path) -> None:
    index_of(tmp_path).write_text('{"rows": 3}\n')
    with pytest.raises(CorpusError, match="damaged or not a corpus index"):
        Corpus(tmp_path)


def test_a_newer_corpus_is_refused(tmp_path: Path) -> None:
    Corpus(tmp_path).keep(LARGE, why=Why.FAILURE)
    index = index_of(tmp_path)
    index.write_text(index.read_text().replace('"version":1', '"version":2'))
    with pytest.raises(CorpusError, match="corpus version 2, this one reads 1"):
        Corpus(tmp_path)


def test_pruning_keeps_all_reached_pairs_and_failures(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    for case in (SMALL, LARGE, *drawn(BACKEND, 5)):
        keep_for_coverage(corpus, case)
    doubled = corpus.kept()[1].case
    corpus.keep(doubled.having(seed=7), why=Why.FAILURE)
    corpus.keep(replace(LARGE, seed=8), why=Why.MARGIN, margins={"T1": 0.5})
    before = reached(*(kept.case for kept in corpus.kept()))
    promised = corpus.superfluous()
    assert doubled in [kept.case for kept in promised]
    assert corpus.prune() == promised
    left = Corpus(tmp_path)
    assert reached(*(kept.case for kept in left.kept())) == before
    assert {7, 8} <= {of_steps(kept.case).seed for kept in left.kept()}
    assert len(list(tmp_path.glob("*/*.json"))) == len(left.kept())
    assert left.superfluous() == []


def test_pruning_removes_dropped_cases_from_the_index(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    for seed in range(HOLDERS + 2):
        corpus.keep(replace(LARGE, seed=seed), why=Why.MARGIN, margins={"T1": seed / 10})
    corpus.prune()
    lines = [json.loads(line) for line in index_of(tmp_path).read_text().splitlines()]
    assert {line["case"] for line in lines[1:]} == {kept.entry.case for kept in corpus.kept()}


def test_merging_adds_new_cases(tmp_path: Path) -> None:
    one, other = Corpus(tmp_path / "one"), Corpus(tmp_path / "other")
    keep_for_coverage(one, LARGE)
    keep_for_coverage(other, LARGE)
    other.keep(SMALL, why=Why.FAILURE)
    other.keep(replace(LARGE, seed=7), why=Why.MARGIN, margins={"T1": 0.5})
    assert one.merge(other) == 2
    assert one.merge(other) == 0
    assert set(Corpus(tmp_path / "one").replays(BACKEND)[:2]) == {SMALL, replace(LARGE, seed=7)}


def test_two_processes_may_add_to_one_corpus(tmp_path: Path) -> None:
    one, other = Corpus(tmp_path), Corpus(tmp_path)
    one.keep(SMALL, why=Why.FAILURE)
    other.keep(LARGE, why=Why.FAILURE)
    assert {kept.entry.why for kept in Corpus(tmp_path).kept()} == {Why.FAILURE}
    assert len(Corpus(tmp_path).kept()) == 2
