"""Requests of a launch as dense tensors: for libraries whose caches have a layout of their own."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DenseRequest:
    """Request `index` of a batch: its query rows `first_row` up to `end_row`, and its tokens out of the pages.

    key [kv_len, kv_heads, head_dim_qk] and value [kv_len, kv_heads, head_dim_vo] are copies.
    """

    index: int
    first_row: int
    end_row: int
    key: torch.Tensor
    value: torch.Tensor

    @property
    def rows(self) -> slice:
        """The request's rows of query, out and lse."""
        return slice(self.first_row, self.end_row)

    @property
    def q_len(self) -> int:
        """Query tokens."""
        return self.end_row - self.first_row

    @property
    def kv_len(self) -> int:
        """Keys, those of the query tokens included."""
        return len(self.key)

    @property
    def past(self) -> int:
        """Keys before the first query token's own; negative if there are fewer keys than queries."""
        return self.kv_len - self.q_len


def dense_requests(
    *,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cum_seq_lens_q: torch.Tensor,
    **_: object,
) -> list[DenseRequest]:
    """List the requests of a launch in order, those without queries or keys included. The caches are in NHD.

    Reads the entries of the page table that a request's length covers, and no others. Takes any other argument of
    `arrange`, and ignores it.
    """
    page_size = k_cache.shape[1]
    starts = cum_seq_lens_q.tolist()
    requests = []
    for index, kv_len in enumerate(seq_lens.tolist()):
        pages = block_tables[index, : -(-kv_len // page_size)].long()
        key, value = (cache[pages].flatten(0, 1)[:kv_len] for cache in (k_cache, v_cache))
        requests.append(DenseRequest(index, starts[index], starts[index + 1], key, value))
    return requests


def gathered(requests: list[DenseRequest]) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather keys and values of all requests, one after another: [keys, kv_heads, head dim] each."""
    return torch.cat([each.key for each in requests]), torch.cat([each.value for each in requests])
