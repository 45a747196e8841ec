"""SGLang's sparse attention: the general strategies pass in releases, and find mistakes in a tree."""

from pathlib import Path

import pytest
from planted_tree import planted_tree

from attnfuzz.harness.ledger.file import Ledger
from attnfuzz.harness.reported.bugs import Bug, load_bugs
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import drawn_cases, run_examples
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.kernels.sglang.project import SGLANG
from attnfuzz.kernels.sglang.sparse.kinds import SPARSE_KINDS
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.sparse.case import SparseCase

pytestmark = pytest.mark.sglang

MISTAKES = {
    "padded drafts have lengths below 0 (pull request 30378)": (
        "dsa_draft",
        Path("sglang", "kernels", "ops", "attention", "dsa", "metadata.py"),
        "        expanded_seq = tl.maximum(expanded_seq, 0)\n",
        "",
    ),
    "a chunk of scores has the requests of the first": (
        "dsa",
        Path("sglang", "srt", "layers", "attention", "dsa", "dsa_indexer.py"),
        "                batch_idx_chunk = token_to_batch_idx[start:end]\n",
        "                batch_idx_chunk = token_to_batch_idx[: end - start]\n",
    ),
    "keys of prefixes are not counted": (
        "dsa",
        Path("sglang", "srt", "layers", "attention", "dsa_backend.py"),
        "                k_offset += seq_len\n",
        "                k_offset += extend_seq_len\n",
    ),
}


LEDGER = Ledger.load(Path(__file__).parents[2] / "attnfuzz-ledger.toml")


def failures(backend: str, runner: Runner, examples: int, ledger: Ledger = LEDGER) -> list[Observation]:
    found: list[Observation] = []

    def visit(case: AnyCase) -> None:
        if not found:
            verdict = runner.verdict(case)
            assert verdict.unsupported is None
            found.extend(
                failure for failure in verdict.failures if ledger.reason(Fingerprint.of(backend, failure), case) is None
            )

    run_examples(drawn_cases(backend), visit, examples=examples, seed_of=5)
    return found


REPORTS = [
    bug
    for bug in load_bugs()
    if bug.project == "sglang" and bug.release and isinstance(bug.case_in_release, SparseCase)
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda bug: bug.name)
def test_a_report_fails_in_the_release_that_had_it_and_passes_in_the_one_that_fixed_it(
    report: Bug, runner: Runner
) -> None:
    assert report.case_in_release is not None
    before, after = (
        runner.verdict(report.case_in_release.having(backend=backend))
        for backend in (report.release, report.release_after)
    )
    assert {failure.kind for failure in before.failures} <= set(report.kinds)
    assert before.failures
    assert after.unsupported is None
    assert not after.failures


@pytest.mark.parametrize("report", REPORTS, ids=lambda bug: bug.name)
def test_the_general_strategies_meet_a_report_in_its_release(report: Bug, runner: Runner) -> None:
    found = failures(report.release, runner, 100)
    assert found
    assert {failure.kind for failure in found} <= set(report.kinds)


@pytest.mark.parametrize("kind", SPARSE_KINDS)
@pytest.mark.parametrize("version", ["0.5.15.post1", "0.5.23"])
def test_sparse_attention_of_a_release_is_right_but_for_known_failures(version: str, kind: str, runner: Runner) -> None:
    assert not failures(f"sglang=={version}:{kind}", runner, 20)


def test_drafts_that_are_padded_after_their_plan_are_found(runner: Runner) -> None:
    """docs/findings/sglang-dsa-draft-padding.md."""
    (failure,) = failures("sglang==0.5.23:dsa_draft", runner, 40, Ledger())
    assert failure.kind is Kind.RAISED
    assert "batch_size must be equal to batch_size_k" in failure.message or "num_splits" in failure.message


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_sparse_attention_is_found(mistake: str, tmp_path: Path, runner: Runner) -> None:
    kind, place, right, wrong = MISTAKES[mistake]
    tree = planted_tree(SGLANG, "0.5.23", tmp_path, (place, right, wrong))
    assert failures(f"{tree}:{kind}", runner, 150)
