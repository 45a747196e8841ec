"""A row under a mask that was ignored, read in another layout, or another one, has that among its claims."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from wrong_rows import answering, claims_of, cut, right_row, said_of, two_requests

from attnfuzz.kernels.planning.packed_masks import packed_masks
from attnfuzz.reference.problem import Problem

Wrong = Callable[[Problem], torch.Tensor]
"""The mask [kv_len] that the second query of the second request has by mistake."""

TOKEN = 5


def masked(window_left: int = -1) -> Problem:
    """Requests of 4, 3 and 3 queries, with 24, 31 and 24 keys, under masks of half of them."""
    torch.manual_seed(11)
    q_lens, kv_lens = (4, 3, 3), (24, 31, 24)
    plain = two_requests()
    query = torch.randn(sum(q_lens), 4, 32).bfloat16()
    masks = tuple(torch.rand(*lengths) < 0.5 for lengths in zip(q_lens, kv_lens, strict=True))
    return replace(
        plain,
        query=query,
        key=plain.key[: sum(kv_lens)],
        value=plain.value[: sum(kv_lens)],
        q_lens=q_lens,
        kv_lens=kv_lens,
        window_left=window_left,
        causal=False,
        masks=masks,
    )


def bits_of(problem: Problem) -> torch.Tensor:
    """All packed bits of the batch."""
    assert problem.masks is not None
    packed, _ = packed_masks(problem.masks)
    return (packed.int().unsqueeze(1) >> torch.arange(8) & 1).bool().flatten()


def mask_of(problem: Problem, request: int) -> torch.Tensor:
    assert problem.masks is not None
    return problem.masks[request]


def bits(first: int, *, step: int = 1) -> Wrong:
    return lambda problem: bits_of(problem)[first : first + 31 * step : step]


def reversed_bytes(problem: Problem) -> torch.Tensor:
    return bits_of(problem).view(-1, 8).flip(1).flatten()[96 + 31 : 96 + 62]


START = 96
"""The first bit of the second request: 4 x 24 bits are 12 bytes."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda _: torch.arange(31) <= 29, "as if the mask were ignored: the row sees the keys up to its own"),
        (lambda _: torch.ones(31, dtype=torch.bool), "as if the mask were ignored: the row sees all keys"),
        (lambda problem: ~mask_of(problem, 1)[1], "as if the mask were inverted"),
        (bits(START + 1, step=3), "as if the mask were transposed"),
        (reversed_bytes, "as if the bits of each byte of the mask were in the reverse order"),
        (bits(START + 32), "as if each row of the mask began at a whole byte"),
        (bits(START + 31 + 1), "as if the mask began 1 bit later"),
        (bits(START + 31 - 8), "as if the mask began 1 byte earlier"),
        (lambda problem: mask_of(problem, 1)[0], "as if the row had the mask of its request's first query"),
        (lambda problem: mask_of(problem, 1)[2], "as if the row had the mask of the query after it"),
        (bits(31), "as if it had the mask of request 0"),
    ],
)
def test_the_mask_that_a_row_had_by_mistake_is_named(wrong: Wrong, words: str) -> None:
    problem = masked()
    found = said_of(problem, lambda row: row.under(wrong(problem)), token=TOKEN)
    assert words in found
    assert not any("mask" in other and "ignored" in other for other in found if other != words)


def test_a_request_whose_mask_is_shorter_than_the_longest_has_claims_of_padded_rows() -> None:
    problem = masked()
    flat = torch.nn.functional.pad(mask_of(problem, 2), (0, 7)).flatten()
    said = said_of(problem, lambda row: row.under(flat[24:48]), token=8)
    assert "as if the rows of the mask were given padded to the longest request, and read as if they were not" in said


def test_the_window_and_the_keys_of_a_masked_row_are_named_as_those_of_others() -> None:
    problem = masked(window_left=9)
    everything = said_of(problem, lambda row: row.alone(range(31)), token=TOKEN)
    assert "as if the window were ignored" in everything
    row = right_row(problem, token=TOKEN)
    key = row.seen[int(row.mask[row.seen.start : row.seen.stop].nonzero()[1])]
    assert f"as if key {key} were missing" in said_of(problem, cut(range(key, key + 1)), token=TOKEN)


def test_a_causal_row_has_no_claim_about_a_mask_and_noise_under_a_mask_has_none() -> None:
    causal = said_of(two_requests(), lambda row: row.alone(row.seen[:-1]))
    assert not any("the mask " in words for words in causal)
    right = right_row(masked(), token=TOKEN)
    noise = torch.randn(right.out.shape, generator=torch.Generator().manual_seed(3))
    assert claims_of(replace(right, out=noise.bfloat16())) == []


def test_a_masked_row_without_the_mistake_has_its_own_answer() -> None:
    row = right_row(masked(window_left=5), token=TOKEN)
    same = answering(row, lambda each: each.under(each.mask))
    assert torch.equal(same.out, row.out)


def interval(first: int, last: int) -> Wrong:
    return lambda _: (torch.arange(31) >= first) & (torch.arange(31) <= last)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (interval(4, 21), "as if the row's keys ended one later"),
        (interval(4, 19), "as if the row's keys ended one earlier"),
        (interval(4, 30), "as if the window did not end: the row sees all keys from its first on"),
        (interval(3, 8), "as if the row had the mask of the batch's query with its index in the request"),
    ],
)
def test_the_end_of_an_interval_that_a_row_had_by_mistake_is_named(wrong: Wrong, words: str) -> None:
    problem = masked()
    assert problem.masks is not None
    problem.masks[1][1] = interval(4, 20)(problem)
    problem.masks[0][1] = interval(3, 8)(problem)[:24]
    assert words in said_of(problem, lambda row: row.under(wrong(problem)), token=TOKEN)


def test_a_window_as_long_to_the_right_as_to_the_left_is_named() -> None:
    problem = masked(window_left=3)
    assert problem.masks is not None
    # The second of three queries of 31 keys has the key 29, and its window begins at 26.
    problem.masks[1][1] = torch.arange(31) <= 29
    words = "as if the window ended as many keys after the row's own as it begins before it"
    assert words in said_of(problem, lambda row: row.under(torch.arange(31) <= 30), token=TOKEN)
