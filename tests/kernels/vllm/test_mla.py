"""The stand-ins for kernels of latent attention, and the projection with which decodes and prefills are one problem."""

import torch

from attnfuzz.kernels.native.ops import workspace_bytes
from attnfuzz.kernels.releases.flash_attention import VARLEN
from attnfuzz.kernels.vllm.mla.kernels import DECODE, GATHER, MERGE
from attnfuzz.kernels.vllm.mla.up_projection import UpProjection
from attnfuzz.reference.geometry import Latent

LATENT = Latent(rank=8, rope=2, nope=6, vo=4)
HEADS = 3


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of [tokens, heads, dim] to all keys, and its LSE [heads, tokens]."""
    logits = torch.einsum("qhd,khd->hqk", query.float(), key.float())
    return torch.einsum("hqk,khd->qhd", logits.softmax(-1), value.float()), logits.logsumexp(-1)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def test_the_projection_is_the_product_with_its_weights_without_rounding() -> None:
    for latent in (LATENT, Latent(rank=4, rope=2, nope=6, vo=7)):
        projection = UpProjection(latent, HEADS, torch.bfloat16)
        tokens = randn(5, latent.rank, dtype=torch.bfloat16)
        assert torch.equal(projection(tokens)[0], tokens @ projection.weight.T)


def test_a_decode_on_latents_is_attention_to_the_projected_keys() -> None:
    projection = UpProjection(LATENT, HEADS, torch.float32)
    tokens = randn(9, LATENT.rank + LATENT.rope)
    weight = projection.weight.view(HEADS, LATENT.nope + LATENT.vo, LATENT.rank)
    key_weight, value_weight = weight.split((LATENT.nope, LATENT.vo), dim=1)
    query = randn(2, HEADS, LATENT.nope + LATENT.rope)
    absorbed = torch.einsum("qhn,hnr->qhr", query[..., : LATENT.nope], key_weight)
    latents = tokens[:, None].expand(-1, HEADS, -1)
    on_latents, _ = attend(
        torch.cat((absorbed, query[..., LATENT.nope :]), dim=-1), latents, latents[..., : LATENT.rank]
    )
    due, _ = attend(query, *projection.projected(tokens))
    torch.testing.assert_close(torch.einsum("qhr,hvr->qhv", on_latents, value_weight), due)


def test_a_merge_of_parts_is_the_attention_to_all_keys() -> None:
    query, key, value = randn(4, HEADS, 8), randn(7, HEADS, 8), randn(7, HEADS, 5)
    (first, first_lse), (last, last_lse) = attend(query, key[:3], value[:3]), attend(query, key[3:], value[3:])
    out, lse = torch.empty_like(first), torch.empty_like(first_lse)
    MERGE.function(
        output=out,
        output_lse=lse,
        prefix_output=first,
        prefix_lse=first_lse,
        suffix_output=last,
        suffix_lse=last_lse,
        with_context=3,
    )
    due, due_lse = attend(query, key, value)
    torch.testing.assert_close((out[:3], lse[:, :3]), (due[:3], due_lse[:, :3]))
    assert torch.equal(out[3], last[3])
    assert torch.equal(lse[:, 3], last_lse[:, 3])


def test_a_merge_with_a_part_without_keys_is_the_other_part() -> None:
    empty, other = (torch.zeros(1, 1, 2), torch.full((1, 1), torch.inf)), (randn(1, 1, 2), randn(1, 1))
    for prefix, suffix, due in ((empty, other, other[0]), (other, empty, other[0]), (empty, empty, empty[0])):
        out = torch.full((1, 1, 2), torch.nan)
        MERGE.function(
            output=out,
            prefix_output=prefix[0],
            prefix_lse=prefix[1],
            suffix_output=suffix[0],
            suffix_lse=suffix[1],
            with_context=1,
        )
        assert torch.equal(out, due)


def test_a_chunk_is_gathered_by_the_request_of_each_token() -> None:
    cache = randn(6, 4, 3)
    out = torch.full((9, 3), -1.0)
    GATHER.function(
        src_cache=cache,
        dst=out,
        block_table=torch.tensor([[2, 5], [1, 3]], dtype=torch.int32),
        cu_seq_lens=torch.tensor([0, 3, 5], dtype=torch.int32),
        token_to_seq=torch.tensor([0, 0, 0, 1, 1, 1], dtype=torch.int32),
        num_tokens=6,
        seq_starts=torch.tensor([2, 4], dtype=torch.int32),
    )
    assert torch.equal(out[:5], torch.cat((cache[2, 2:], cache[5, :1], cache[3, :2])))
    # The last token is behind its request.
    assert (out[5:] == -1).all()


def test_flash_attention_gives_nothing_for_a_row_without_keys() -> None:
    query, key, value = (randn(3, HEADS, dim, dtype=torch.bfloat16) for dim in (8, 8, 4))
    out, lse = torch.full((3, HEADS, 4), torch.nan, dtype=torch.bfloat16), torch.full((HEADS, 3), torch.nan)
    VARLEN.function(
        out=out,
        lse=lse,
        q=query,
        k=key,
        v=value,
        cu_seqlens_q=torch.tensor([0, 2, 3], dtype=torch.int32),
        cu_seqlens_k=torch.tensor([0, 3, 3], dtype=torch.int32),
        max_seqlen_q=2,
        max_seqlen_k=3,
        softmax_scale=1.0,
        causal=False,
    )
    due, due_lse = attend(query[:2], key, value)
    torch.testing.assert_close(out[:2].float(), due, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse[:, :2], due_lse, atol=1e-4, rtol=1e-4)
    assert (out[2] == 0).all()
    assert (lse[:, 2] == -torch.inf).all()


def decode(query: torch.Tensor, out: torch.Tensor, **batch: torch.Tensor) -> torch.Tensor:
    size = workspace_bytes(batch=8, q_len=8, q_heads=HEADS, kv_heads=1, head_dim_vo=LATENT.rank, max_seq_len=64)
    DECODE.function(
        query=query,
        out=out,
        kv_cache=randn(4, 1, 32, LATENT.rank + LATENT.rope, dtype=torch.bfloat16),
        workspace_buffer=torch.zeros(size.total, dtype=torch.uint8),
        qk_nope_head_dim=LATENT.nope,
        kv_lora_rank=LATENT.rank,
        qk_rope_head_dim=LATENT.rope,
        max_seq_len=64,
        **batch,
    )
    return out


def test_packed_queries_of_a_decode_are_those_of_their_requests() -> None:
    table, lengths = torch.tensor([[1, 2], [3, 0], [0, 0]], dtype=torch.int32), torch.tensor([40, 9, 0]).int()
    query = randn(6, HEADS, LATENT.rank + LATENT.rope, dtype=torch.bfloat16)
    packed = decode(
        query,
        torch.full((6, HEADS, LATENT.rank), 7.0, dtype=torch.bfloat16),
        block_tables=table,
        seq_lens=lengths,
        cum_seq_lens_q=torch.tensor([0, 3, 4, 4], dtype=torch.int32),
    )
    for row, request, seen in ((0, 0, 38), (1, 0, 39), (2, 0, 40), (3, 1, 9)):
        alone = decode(
            query[row].view(1, 1, HEADS, -1),
            torch.empty(1, 1, HEADS, LATENT.rank, dtype=torch.bfloat16),
            block_tables=table[request : request + 1],
            seq_lens=torch.tensor([seen], dtype=torch.int32),
        )
        assert torch.equal(packed[row], alone[0, 0])
    # Rows of no request are not written.
    assert (packed[4:] == 7).all()
