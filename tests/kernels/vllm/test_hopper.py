"""XQA's stand-in, alone: drafts see those that their mask says."""

import pytest
import torch

from attnfuzz.kernels.entry_points.decode import XQA_SEMAPHORES
from attnfuzz.kernels.vllm.hopper import xqa_batch_decode_with_kv_cache

PAGE, DIM, Q_LEN = 4, 8, 3


def attended(mask: list[list[int]], *, ragged: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What three drafts of one request with five keys get, and what is due by a mask of drafts."""
    torch.manual_seed(0)
    cache, query = torch.randn(3, 2, PAGE, 1, DIM), torch.randn(Q_LEN, 1, DIM)
    words = torch.tensor([sum(bit << place for place, bit in enumerate(row)) for row in mask], dtype=torch.int32)
    packed = torch.stack((words, torch.zeros_like(words)), dim=1).to(torch.uint16)
    out = torch.zeros_like(query)
    xqa_batch_decode_with_kv_cache(
        out=out,
        query=query,
        kv_cache=cache,
        workspace_buffer=torch.zeros(XQA_SEMAPHORES + 4096, dtype=torch.uint8),
        block_tables=torch.tensor([[1, 2]], dtype=torch.int32),
        seq_lens=torch.tensor([5], dtype=torch.int32),
        max_seq_len=8,
        q_len_per_req=Q_LEN,
        mask=packed if ragged else packed.unsqueeze(0),
        q_cu_seq_lens=torch.tensor([0, Q_LEN], dtype=torch.int32) if ragged else None,
        bmm1_scale=0.5,
        bmm2_scale=1.0,
    )
    keys, values = cache[1:].transpose(0, 1).flatten(1, 2)[:, :5, 0]
    seen = torch.cat((torch.ones(Q_LEN, 2), torch.tensor(mask)), dim=1).bool()
    logits = (0.5 * query[:, 0] @ keys.T).masked_fill(~seen, -torch.inf)
    return out[:, 0], torch.softmax(logits, dim=-1) @ values


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("mask", [[[1, 0, 0], [1, 1, 0], [1, 1, 1]], [[1, 0, 0], [0, 1, 0], [1, 0, 1]]])
def test_drafts_see_the_keys_before_them_and_the_drafts_of_their_mask(mask: list[list[int]], ragged: bool) -> None:
    got, due = attended(mask, ragged=ragged)
    torch.testing.assert_close(got, due)
