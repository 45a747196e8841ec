"""The picture of a case shows its batch, its pages and where it fails, and stays small."""

from xml.etree import ElementTree as ET

import pytest
from campaign_events import MISMATCH
from harness_cases import GEOMETRY, decode_case, draft_extend_case
from hypothesis import given, settings
from msgspec.structs import replace
from small_cases import step

from attnfuzz import cases
from attnfuzz.harness.report.drawing import draw_case
from attnfuzz.harness.verdict.failures import Access, KeysRead, Kind, Observation, RowAddress
from attnfuzz.reference.case import Case, Mode, PageOrder, Pages, Request, TableTail

PAST_THE_END = Observation(
    kind=Kind.ILLEGAL_ACCESS,
    place="seq_lens",
    message="read at seq_lens: 0 bytes past the end (element 2 of 2) (killed by SIGSEGV), in a_kernel, step 0",
    step=0,
    access=Access("read", {"seq_lens": 8}, 2, 2),
)


def drawn(case: Case, observation: Observation | None = None) -> ET.Element:
    return ET.fromstring(draw_case(case, observation))  # noqa: S314 - written here


def texts(picture: ET.Element) -> list[str]:
    return [text.text or "" for text in picture.iter("text")]


def boxes(picture: ET.Element, of: str) -> list[tuple[float, float]]:
    """Left and top of the rectangles of one class."""
    found = [rect for rect in picture.iter("rect") if of in rect.get("class", "").split()]
    return [(float(rect.get("x", "")), float(rect.get("y", ""))) for rect in found]


def height_of(picture: ET.Element, text: str) -> float:
    return next(float(each.get("y", "")) for each in picture.iter("text") if each.text == text)


def test_the_failing_row_and_its_token_are_marked() -> None:
    picture = drawn(decode_case("fake"), MISMATCH)
    ((_, band),) = boxes(picture, "wrong-row")
    ((_, token),) = boxes(picture, "wrong-token")
    assert height_of(picture, "request 0") < band < height_of(picture, "request 1") < height_of(picture, "request 2")
    assert band < token < height_of(picture, "request 2")


def test_the_second_token_is_not_drawn_where_the_first_is() -> None:
    case = draft_extend_case("fake")
    first, second = (
        boxes(
            drawn(case, replace(MISMATCH, row=RowAddress(1, token, 0))),
            "wrong-token",
        )
        for token in (0, 1)
    )
    assert first[0][0] < second[0][0]


@pytest.mark.parametrize(
    ("keys", "words", "marks"),
    [
        (KeysRead((2, 9), ((2, 4), (6, 9))), ["skips keys 4 to 5"], {"skipped": 1}),
        (
            KeysRead((2, 9), ((0, 9), (3, 4))),
            ["counts twice key 3", "reads, but must not see, keys 0 to 1"],
            {"read-wrongly": 1},
        ),
        (KeysRead((2, 9), ()), ["skips keys 2 to 8"], {"skipped": 1}),
        (KeysRead((0, 9), ((0, 9),), (1, 3)), ["reads page 3 for keys 4 to 7"], {"read-wrongly": 2}),
        (
            KeysRead((0, 9), ((0, 1), (2, 3), (4, 5), (6, 7))),
            ["skips key 1, key 3, key 5 and 1 more run of keys"],
            {"skipped": 4},
        ),
    ],
)
def test_keys_and_pages_that_a_row_misreads_are_marked_and_named(
    keys: KeysRead, words: list[str], marks: dict[str, int]
) -> None:
    picture = drawn(decode_case("fake"), replace(MISMATCH, keys=keys))
    plain = drawn(decode_case("fake"), MISMATCH)
    assert [text for text in texts(picture) if text not in texts(plain)] == words
    assert {name: len(boxes(picture, name)) for name in marks} == marks
    # What is below moves down.
    assert height_of(picture, "request 2") == height_of(plain, "request 2") + 13 * len(words)


def test_nothing_is_marked_in_a_case_that_passes() -> None:
    picture = drawn(decode_case("fake"))
    assert not boxes(picture, "wrong-row")
    assert not boxes(picture, "wrong-token")


def test_only_the_failing_step_is_marked() -> None:
    one = decode_case("fake")
    picture = drawn(replace(one, steps=one.steps * 2), replace(MISMATCH, step=1))
    ((_, band),) = boxes(picture, "wrong-row")
    assert band > height_of(picture, "step 1: decode")


def test_an_access_past_the_end_is_drawn_outside_of_the_tensor() -> None:
    picture = drawn(draft_extend_case("fake"), PAST_THE_END)
    ((hit, top),) = boxes(picture, "hit")
    assert boxes(picture, "outside") == boxes(picture, "hit")
    assert all(x < hit for x, _ in boxes(picture, "cell"))
    assert len(boxes(picture, "cell")) == 2
    (pool,) = [text for text in texts(picture) if text.startswith("KV pool")]
    assert height_of(picture, pool) > top + 30


def test_padding_is_hatched_and_no_request() -> None:
    picture = drawn(draft_extend_case("fake"))
    assert len(boxes(picture, "padding")) == 4
    assert "padded row 2" in texts(picture)


def test_a_request_without_keys_says_so() -> None:
    assert "no keys" in texts(drawn(decode_case("fake", 0)))


def test_only_queries_have_keys_of_their_own() -> None:
    asking = drawn(decode_case("fake", 5, padded=1))
    assert len(boxes(asking, "own-keys")) == 1
    case = Case(backend="fake", geometry=GEOMETRY, steps=(step(Mode.EXTEND, (0, 5), (2, 2)),))
    assert len(boxes(drawn(case), "own-keys")) == 1


def test_pages_are_drawn_with_the_ids_that_the_backend_gets() -> None:
    case = replace(decode_case("fake", 12, 4), pages=Pages(order=PageOrder.REVERSED))
    picture = drawn(case)
    row = height_of(picture, "request 0") + 4
    assert [text.text for text in picture.iter("text") if text.get("y") == f"{row:g}"][:3] == ["4", "3", "2"]


def test_unused_slots_of_a_page_are_hatched() -> None:
    assert len(boxes(drawn(decode_case("fake", 8, padded=1)), "nan")) == 1  # the spare page of the pool
    assert len(boxes(drawn(decode_case("fake", 7, padded=1)), "nan")) == 2


def test_the_tail_of_a_table_is_drawn_beyond_the_pages_of_a_request() -> None:
    case = replace(decode_case("fake", 12, 4), pages=Pages(tail=TableTail.MINUS_ONE))
    assert len(boxes(drawn(case), "tail")) == 1
    assert "-1" in texts(drawn(case))
    slack = replace(case, pages=Pages(tail=TableTail.MINUS_ONE, table_slack=1))
    assert len(boxes(drawn(slack), "tail")) == 2


def test_a_hole_is_a_line_of_text_and_pages_behind_it_are_drawn() -> None:
    case = replace(decode_case("fake", 12, 4), pages=Pages(hole=1 << 24))
    titles = [title.text for title in drawn(case).iter("title")]
    assert f"page {(1 << 24) + 1}: of slot 0" in titles
    assert "+ 16,777,216 pages after the dummy page, which have addresses and no memory" in texts(drawn(case))


def test_a_shared_page_shows_all_its_owners() -> None:
    case = replace(decode_case("fake", 12, 12), pages=Pages(order=PageOrder.SHARED_PREFIX))
    titles = [title.text for title in drawn(case).iter("title")]
    assert "page 1: of slots 0, 1" in titles


@pytest.mark.slow
def test_a_large_case_is_elided_honestly_and_stays_small() -> None:
    requests = tuple(Request(slot, 1, 2000 + slot) for slot in range(64))
    large = step(Mode.DECODE, stride=1, rows=64)
    case = Case(
        backend="fake",
        geometry=replace(GEOMETRY, page_size=1),
        steps=tuple(replace(large, requests=requests) for _ in range(12)),
    )
    picture = drawn(case, replace(MISMATCH, step=7))
    assert len(draw_case(case)) < 60_000
    assert any(text.startswith("+ 52 more requests") for text in texts(picture))
    assert any(text.endswith("more pages") for text in texts(picture))
    assert "... 12 steps in all" in texts(picture)
    assert any(text == "step 7: decode" for text in texts(picture))


@pytest.mark.parametrize("tail", TableTail)
def test_thousands_of_pages_leave_room_for_the_tail_of_their_table(tail: TableTail) -> None:
    requests = (Request(0, 1, 12_000), Request(1, 1, 11_000))
    fits(
        Case(
            backend="fake",
            geometry=replace(GEOMETRY, page_size=1),
            steps=(replace(step(Mode.DECODE, stride=1, rows=2), requests=requests),),
            pages=Pages(tail=tail, table_slack=1000),
        )
    )


@pytest.mark.slow
@given(cases("trtllm_mha") | cases("trtllm_mla"))
@settings(max_examples=60, deadline=None, database=None, derandomize=True)
def test_every_case_fits_into_its_picture(case: Case) -> None:
    fits(case)


def fits(case: Case) -> None:
    picture = drawn(case, PAST_THE_END)
    _, _, width, height = map(float, picture.get("viewBox", "").split())
    for rect in picture.iter("rect"):
        assert float(rect.get("x", "")) + float(rect.get("width", "")) <= width
        assert float(rect.get("y", "")) + float(rect.get("height", "")) <= height


@pytest.mark.slow
def test_a_backends_name_can_not_break_out_of_the_picture() -> None:
    assert "<script" not in draw_case(decode_case('"><script>alert(1)</script>'))
