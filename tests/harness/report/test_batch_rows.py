"""Which rows of a batch a picture shows, and what it says of the others."""

from harness_cases import decode_case, draft_extend_case
from small_cases import step

from attnfuzz.harness.report.batch_rows import BatchRow, Elided, batch_rows, shown
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


def test_a_large_batch_leaves_out_its_middle_and_says_what_is_there() -> None:
    rows = batch_rows(decode_case("fake", *range(64), padded=64).steps[0])
    result = shown(rows, marked=[])
    (elided,) = [row for row in result if isinstance(row, Elided)]
    assert len(result) - 1 + len(elided.rows) == 64
    assert elided.words == "+ 52 more requests (q 1, kv 9 to 60)"


def test_what_fails_is_shown_wherever_it_is() -> None:
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
