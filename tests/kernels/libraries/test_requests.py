"""Tests of a launch's requests as dense tensors."""

import torch

from attnfuzz.kernels.libraries.requests import dense_requests

POISON = float("nan")


def test_tokens_lie_in_the_order_of_the_page_table() -> None:
    """Pages 2 and 0 hold three tokens; the rest of the last page, unused pages and further columns are not read."""
    k_cache = torch.full((3, 2, 1, 4), POISON)
    k_cache[2, :, 0, 0] = torch.tensor([1.0, 2.0])
    k_cache[0, 0, 0, 0] = 3.0
    (request,) = dense_requests(
        k_cache=k_cache,
        v_cache=-k_cache[..., :2],
        block_tables=torch.tensor([[2, 0, -1, 1 << 30]], dtype=torch.int32),
        seq_lens=torch.tensor([3], dtype=torch.int32),
        cum_seq_lens_q=torch.tensor([0, 2], dtype=torch.int32),
    )
    assert request.key[:, 0, 0].tolist() == [1, 2, 3]
    assert request.value[:, 0, 0].tolist() == [-1, -2, -3]
    assert (request.key.shape, request.value.shape) == ((3, 1, 4), (3, 1, 2))
    assert (request.rows, request.q_len, request.kv_len, request.past) == (slice(0, 2), 2, 3, 1)


def test_requests_without_queries_or_keys_stay_in_the_list() -> None:
    """Their indices are those of the batch; fp8 pages are gathered as they are."""
    cache = torch.zeros(2, 2, 1, 8).to(torch.float8_e4m3fn)
    requests = dense_requests(
        k_cache=cache,
        v_cache=cache,
        block_tables=torch.tensor([[-1], [1], [1]], dtype=torch.int32),
        seq_lens=torch.tensor([0, 1, 1], dtype=torch.int32),
        cum_seq_lens_q=torch.tensor([0, 2, 2, 3], dtype=torch.int32),
    )
    assert [(request.index, request.q_len, request.kv_len) for request in requests] == [(0, 2, 0), (1, 0, 1), (2, 1, 1)]
    assert requests[0].past == -2
    assert requests[2].key.dtype is torch.float8_e4m3fn
