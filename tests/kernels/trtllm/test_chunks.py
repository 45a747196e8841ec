"""Chunks of a prefix: each request's share, until all prefixes are covered."""

from hypothesis import given, settings
from hypothesis import strategies as st

from attnfuzz.kernels.trtllm.prefill import chunk_prefixes


def test_chunks_of_four_requests_of_unequal_prefixes() -> None:
    chunks = chunk_prefixes([0, 10_000, 40_000, 100_000], 4 * 32_768)
    assert [list(chunk.lengths) for chunk in chunks] == [
        [0, 10_000, 32_768, 32_768],
        [0, 0, 7_232, 32_768],
        [0, 0, 0, 32_768],
        [0, 0, 0, 1_696],
    ]
    assert all(chunk.has_zero_kv for chunk in chunks)


def test_no_prefix_needs_no_chunk() -> None:
    assert chunk_prefixes([0, 0], 8) == []
    assert chunk_prefixes([], 8) == []


def test_the_flag_says_that_some_request_has_no_key() -> None:
    assert [chunk.has_zero_kv for chunk in chunk_prefixes([5, 9], 10)] == [False, True]


@settings(database=None, deadline=None, derandomize=True, max_examples=200)
@given(prefixes=st.lists(st.integers(0, 60), max_size=6), capacity=st.integers(1, 64))
def test_chunks_cover_each_prefix_once_and_in_order_within_the_capacity(prefixes: list[int], capacity: int) -> None:
    covered: list[list[int]] = [[] for _ in prefixes]
    for chunk in chunk_prefixes(prefixes, capacity):
        assert any(chunk.lengths)
        assert sum(chunk.lengths) <= max(capacity, len(prefixes))
        for positions, start, length in zip(covered, chunk.starts, chunk.lengths, strict=True):
            positions.extend(range(start, start + length))
    assert covered == [list(range(prefix)) for prefix in prefixes]
