"""Padding follows what servers do when a data-parallel group agrees on a size."""

import pytest
from small_cases import step

from attnfuzz.reference.case import Mode, Request, Step
from attnfuzz.strategies.padding import bucket_of, pad_step


def verify(batch: int, stride: int) -> Step:
    """A verify step without padding."""
    return step(Mode.TARGET_VERIFY, *[(stride, 20)] * batch, stride=stride)


def test_the_reported_batch_of_ten_is_padded_to_twelve() -> None:
    assert pad_step(verify(10, 4), others=12, attention_group=1).padded_batch == 12
    assert pad_step(verify(10, 4), others=0, attention_group=16).padded_batch == 12


def test_without_others_a_batch_is_only_aligned() -> None:
    assert not pad_step(verify(10, 4), others=0, attention_group=1).padded
    assert pad_step(verify(10, 4), others=3, attention_group=8).padded_tokens == 40


@pytest.mark.parametrize("group", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("stride", [1, 3, 5, 8])
def test_a_uniform_batch_stays_whole_and_aligned(group: int, stride: int) -> None:
    padded = pad_step(verify(3, stride), others=4, attention_group=group).padded_tokens
    assert padded % stride == 0
    assert padded % group == 0
    assert padded >= 4 * stride


def test_a_ragged_batch_gains_tokens_and_no_requests() -> None:
    step = Step(mode=Mode.EXTEND, requests=(Request(0, 3, 3), Request(1, 4, 9)), padded_tokens=7)
    padded = pad_step(step, others=0, attention_group=8)
    assert (padded.padded_tokens, padded.padded_batch) == (8, 2)


def test_the_bucket_is_the_smallest_that_holds_the_batch() -> None:
    assert bucket_of(9, (4, 16, 64)) == 16
    assert bucket_of(4, (4, 16, 64)) == 4
    assert bucket_of(65, (4, 16, 64)) is None
