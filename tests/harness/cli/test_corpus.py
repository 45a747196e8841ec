"""`attnfuzz corpus`: what it shows and changes, and what it says of bad input."""

from pathlib import Path

from command_line import Attnfuzz
from harness_cases import CALLS, decode_case
from msgspec.structs import replace
from refusals import refused

from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.corpus import Corpus, Why
from attnfuzz.reference import case_file

FOLDER = Path("attnfuzz-out/corpus")
CASE = decode_case("trtllm_mha")


def test_an_empty_corpus_is_listed(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("corpus", "list")
    assert (ran.code, ran.out) == (0, "0 cases.\n")


def test_a_list_says_why_each_case_is_kept(attnfuzz: Attnfuzz) -> None:
    corpus = Corpus(FOLDER)
    corpus.keep(CASE, why=Why.FAILURE)
    corpus.keep(replace(CASE, seed=1), why=Why.MARGIN, margins={"T1": 0.91})
    ran = attnfuzz("corpus", "list")
    assert ran.code == 0
    assert f"{case_file.case_id(CASE)}  trtllm_mha  failure" in ran.out
    assert "margin (T1 0.91)" in ran.out
    assert "2 cases: 1 for failure, 1 for margin." in ran.out
    assert "0 cases." in attnfuzz("corpus", "list", "--backend", "torch_sdpa").out


def test_a_broken_case_is_reported_and_the_rest_listed(attnfuzz: Attnfuzz) -> None:
    Corpus(FOLDER).keep(CASE, why=Why.FAILURE)
    (FOLDER / "trtllm_mha" / "broken.json").touch()
    ran = attnfuzz("corpus", "list")
    assert ran.code == 0
    assert "1 case: 1 for failure." in ran.out
    assert "broken.json" in ran.err


def test_added_cases_are_run_first(attnfuzz: Attnfuzz) -> None:
    case_file.save("case.json", CASE)
    assert "1 case added" in attnfuzz("corpus", "add", "case.json").out
    assert "0 cases added to attnfuzz-out/corpus; 1 there already." in attnfuzz("corpus", "add", "case.json").out
    assert Corpus(FOLDER).replays("trtllm_mha") == [CASE]


def test_nothing_is_added_if_one_case_is_bad(attnfuzz: Attnfuzz) -> None:
    case_file.save("case.json", CASE)
    Path("bad.json").write_text("{")
    refused(attnfuzz("corpus", "add", "case.json", "bad.json"), "bad.json", "damaged")
    assert not FOLDER.exists()


def test_a_case_made_of_calls_is_refused(attnfuzz: Attnfuzz) -> None:
    case_file.save("calls.json", CALLS)
    refused(attnfuzz("corpus", "add", "calls.json"), "calls.json", "made of steps")


def test_another_corpus_is_taken_over(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    Corpus(Home(tmp_path / "other").corpus).keep(CASE, why=Why.FAILURE)
    assert "1 case of other/corpus copied into attnfuzz-out/corpus." in attnfuzz("corpus", "merge", "other").out
    assert Corpus(FOLDER).replays("trtllm_mha") == [CASE]


def test_a_folder_that_is_no_corpus_is_not_taken_over(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    (tmp_path / "other/corpus").mkdir(parents=True)
    (tmp_path / "other/corpus/thesis.tex").touch()
    refused(attnfuzz("corpus", "merge", "other"), "other/corpus", "is not a corpus")
    refused(attnfuzz("corpus", "merge", "other/corpus"), "other/corpus has no corpus", "name a home")


def test_a_dry_run_of_pruning_lists_the_cases_to_drop(attnfuzz: Attnfuzz) -> None:
    corpus = Corpus(FOLDER)
    corpus.keep_for_coverage([CASE])
    (kept,) = corpus.kept()
    corpus.keep(kept.case.having(seed=7), why=Why.FAILURE)
    ran = attnfuzz("corpus", "prune", "--dry-run")
    assert ran.out.splitlines() == [str(kept.path), "1 of 2 cases would be dropped."]
    assert "1 of 2 cases dropped." in attnfuzz("corpus", "prune").out
    assert [each.entry.why for each in Corpus(FOLDER).kept()] == [Why.FAILURE]
