"""What is marked is what the judge and the post-mortem say."""

import pytest
from campaign_events import MISMATCH
from harness_cases import chunked_case, decode_case, draft_extend_case
from msgspec.structs import replace

from attnfuzz.harness.report.batch_rows import Failing, StrayAccess, failing
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind, Observation, RowAddress

CASE = decode_case("fake")


@pytest.mark.slow
def test_a_read_past_metadata_marks_the_padded_row_that_it_was_for(runner: Runner) -> None:
    case = draft_extend_case("trtllm_mha@21649-before")
    (observation,) = runner.verdict(case).failures
    where = failing(case, observation)
    assert where.access == StrayAccess("cum_seq_lens_q", 3, 3)
    assert (where.step, where.row) == (0, 2)
    assert where.marks(0, 2, real=False)
    assert not where.marks(0, 1, real=True)


def test_a_wrong_row_is_that_of_the_message(runner: Runner) -> None:
    case = chunked_case("trtllm_mla@22688-before")
    observation = runner.verdict(case).failures[0]
    where = failing(case, observation)
    assert where.row is not None
    assert case.steps[0].requests[where.row].q_len > (where.token or 0)
    assert f"request {where.row} " in observation.message


def test_the_row_of_an_observation_is_marked() -> None:
    assert failing(CASE, replace(MISMATCH, row=RowAddress(2, 0, 3))) == Failing(0, row=2, token=0, head=3)


def test_wrong_padding_marks_every_padded_row() -> None:
    leak = Observation(kind=Kind.PADDING_LEAK, place="padded rows", message="1 of 1 padded rows hold", step=0)
    where = failing(CASE, leak)
    assert where.marks(0, 3, real=False)
    assert not where.marks(0, 0, real=True)


def test_nothing_is_marked_where_no_row_is_named() -> None:
    assert failing(CASE, replace(MISMATCH, row=None)) == Failing(0)


def test_a_step_that_the_case_does_not_have_is_not_marked() -> None:
    assert failing(CASE, replace(MISMATCH, step=5)).step == -1
