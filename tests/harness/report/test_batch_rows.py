"""Which rows of a batch a picture shows and marks, and what it says of the others."""

import pytest
from campaign_events import MISMATCH
from harness_cases import chunked_case, decode_case, draft_extend_case
from msgspec.structs import replace
from small_cases import step

from attnfuzz.harness.report.batch_rows import BatchRow, Elided, Failing, batch_rows, failing, shown
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind, Observation, RowAddress
from attnfuzz.reference.case import Launch, Mode


def test_a_padded_batch_has_rows_of_no_request() -> None:
    rows = batch_rows(draft_extend_case("fake").steps[0])
    assert [row.request is None for row in rows] == [False, False, True]
    assert rows[2] == BatchRow(2, None, 4)


def test_padded_tokens_of_a_prefill_are_in_no_row() -> None:
    rows = batch_rows(step(Mode.EXTEND, (3, 5), (2, 2), rows=8))
    assert rows[2:] == [BatchRow(-1, None, 3)]


def test_a_capture_is_all_padding() -> None:
    rows = batch_rows(step(Mode.DECODE, stride=1, rows=4, launch=Launch.CAPTURE))
    assert rows == [BatchRow(index, None, 1) for index in range(4)]


def test_all_query_rows_that_the_backend_is_handed_are_there() -> None:
    captured = step(Mode.DRAFT_EXTEND, (1, 9), (3, 4), stride=4, rows=3, launch=Launch.REPLAY)
    rows = batch_rows(captured)
    assert captured.tokens + sum(row.padding for row in rows) == captured.padded_tokens


def test_a_small_batch_is_shown_whole() -> None:
    rows = batch_rows(decode_case("fake").steps[0])
    assert shown(rows, marked=[]) == rows


def test_the_middle_of_a_large_batch_is_elided_with_a_summary() -> None:
    rows = batch_rows(decode_case("fake", *range(64), padded=64).steps[0])
    result = shown(rows, marked=[])
    (elided,) = [row for row in result if isinstance(row, Elided)]
    assert len(result) - 1 + len(elided.rows) == 64
    assert elided.words == "+ 52 more requests (q 1, kv 9 to 60)"


def test_a_failing_row_is_never_elided() -> None:
    rows = batch_rows(decode_case("fake", *range(64), padded=64).steps[0])
    result = shown(rows, marked=[31])
    assert rows[31] in result
    assert sum(len(row.rows) if isinstance(row, Elided) else 1 for row in result) == 64


def test_padded_rows_are_alike_and_two_of_them_are_enough() -> None:
    rows = batch_rows(decode_case("fake", 4, padded=8).steps[0])
    *first, elided = shown(rows, marked=[])
    assert first == rows[:3]
    assert isinstance(elided, Elided)
    assert elided.words == "+ 5 more padded rows"


def test_a_padded_row_that_fails_is_shown() -> None:
    rows = batch_rows(decode_case("fake", 4, padded=8).steps[0])
    assert rows[6] in shown(rows, marked=[6])


CASE = decode_case("fake")


@pytest.mark.slow
def test_a_read_past_metadata_marks_the_padded_row_that_it_was_for(runner: Runner) -> None:
    case = draft_extend_case("trtllm_mha@21649-before")
    (observation,) = runner.verdict(case).failures
    where = failing(case, observation)
    assert where.fault is not None
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
