"""The Blackwell sessions, judged on the CPU: calls bind to FlashInfer, and their metadata gives the right answer."""

import pytest

pytest.importorskip("flashinfer", reason="binds to the installed FlashInfer")
from reported_cases import (
    ACCEPTED_LESS,
    CHUNK_WITHOUT_KEYS,
    PADDED_AFTER_PLANNING,
    kinds,
    over,
)
from small_cases import run
from trtllm_on_cpu import named

from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference.case import Step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("revision", "steps", "found"),
    [
        ("BLACKWELL_MHA_21649_BEFORE", PADDED_AFTER_PLANNING, {Kind.ILLEGAL_ACCESS}),
        # It kills its worker as the first does, at an import of FlashInfer for each.
        pytest.param("BLACKWELL_MHA_24566", PADDED_AFTER_PLANNING, {Kind.ILLEGAL_ACCESS}, marks=pytest.mark.long),
        ("BLACKWELL_MLA_21987_BEFORE", ACCEPTED_LESS, {Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH}),
        ("BLACKWELL_MLA_22688_BEFORE", CHUNK_WITHOUT_KEYS, {Kind.UNWRITTEN}),
    ],
)
def test_a_revision_fails_as_it_was_reported(
    request: pytest.FixtureRequest, revision: str, steps: tuple[Step, ...], found: set[Kind]
) -> None:
    fixed = named(revision[: len("BLACKWELL_MHA")])
    case = over(fixed, *steps)
    # Only a case that kills its process needs a worker, which takes 2 s to import FlashInfer after each death.
    judged = request.getfixturevalue("runner").verdict if Kind.ILLEGAL_ACCESS in found else run
    assert kinds(judged(case, named(revision))) >= found
    assert not kinds(run(case))
