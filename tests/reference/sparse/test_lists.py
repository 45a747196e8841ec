"""Lists of top-k: ties, NaN, short rows, and entries that name no key."""

import pytest
import torch

from attnfuzz.reference.sparse.lists import Selection, attended, to_offsets, to_slots

SCORES = torch.tensor([[9.0, 3.0, 1.0, 3.0, float("nan"), -1.0, float("-inf")]])


def mistake(entries: list[int], *, start: int = 0, length: int = 7, scores: torch.Tensor = SCORES) -> str:
    selection = Selection(scores, (start,), (length,), len(entries))
    return selection.mistake(0, torch.tensor(entries, dtype=torch.int32))


@pytest.mark.parametrize("entries", [[4, 0, 1], [3, 4, 0], [0, 1, 4]])
def test_nan_is_first_and_either_of_two_equal_scores_is_right(entries: list[int]) -> None:
    assert mistake(entries) == ""


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([4, 0, 2], "position 1 has a score of 3 and is left out, but position 2 with 1 is listed"),
        ([0, 1, 3], "position 4 has a score of nan and is left out"),
        ([4, 0, 0], "position 0 is listed 2 times"),
        ([4, 0, 7], "entry 2 is 7, which is no key of the row, of 7"),
        ([4, 0, -1], "entry 2 is -1, which is no key"),
    ],
)
def test_a_wrong_list_is_explained(entries: list[int], words: str) -> None:
    assert words in mistake(entries)


def test_a_short_row_has_its_keys_then_minus_one() -> None:
    assert mistake([1, 0, -1, -1], length=2) == ""
    assert "entry 2 is 0, and not -1" in mistake([1, 0, 0, -1], length=2)
    assert mistake([-1, -1], length=0) == ""


def test_positions_count_from_the_start_of_a_row() -> None:
    assert mistake([0, 2], start=1, length=3) == ""
    assert mistake([1, 3], start=1, length=3) != ""


def test_infinity_is_listed_only_where_nothing_else_is_left() -> None:
    assert mistake([0, 1, 2, 3, 4, 5, 6]) == ""
    assert "position 5 has a score of -1 and is left out" in mistake([0, 1, 2, 3, 4, 6])


def test_zeros_of_both_signs_are_equal() -> None:
    scores = torch.tensor([[0.0, -0.0, 1.0]])
    assert mistake([2, 1], length=3, scores=scores) == mistake([2, 0], length=3, scores=scores) == ""


def test_the_right_lists_are_right_and_have_names() -> None:
    names = (torch.tensor([40, 50, 60, 70, 80, 90, 99]),)
    selection = Selection(SCORES, (0,), (7,), 3, names)
    assert sorted(selection.right[0].tolist()) in ([40, 50, 80], [40, 70, 80])
    assert selection.mistake(0, selection.right[0]) == ""
    assert selection.mistake(0, torch.tensor([0, 1, 4])) != ""


def test_slots_and_offsets_keep_minus_one() -> None:
    positions = torch.tensor([[5, -1, 0]], dtype=torch.int32)
    assert to_slots(positions, (torch.tensor([7, 2]),), 4).tolist() == [[9, -1, 28]]
    assert to_offsets(positions, torch.tensor([100])).tolist() == [[105, -1, 100]]


def test_entries_outside_of_the_pool_or_behind_the_count_are_not_attended() -> None:
    entries = torch.tensor([3, -1, 9, 2, 2])
    assert attended(entries, 9, None).tolist() == [3, 2, 2]
    assert attended(entries, 10, 3).tolist() == [3, 9]
