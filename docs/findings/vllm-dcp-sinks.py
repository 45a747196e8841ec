"""vLLM's FlashAttention backend ignores sinks with decode context parallelism. Needs torch and an unpacked vllm.

`FlashAttentionImpl.forward` runs on one query and its own key, on the CPU: with one rank, and with two that share keys,
of a prompt without a prefix, in which nothing is exchanged. Only vLLM's module of the backend is imported,
with stand-ins for its imports. FlashAttention is replaced by attention in torch with the same sinks (`s_aux`).
"""

from types import SimpleNamespace

from _template import finish, requirements, show
from _vllm import Metadata, code_of_the_release, flash_attention

with requirements("torch"):
    import torch

PAGE, DIM = 16, 16


def attend(*, q, k, v, out=None, s_aux=None, **_):
    """Attend to one key, which may be the first of a page, and a sink for each head."""
    key, value = (each.reshape(-1, DIM)[:1].float() for each in (k, v))
    logits = torch.einsum("thd,kd->htk", q.float(), key)
    sinks = [] if s_aux is None else [s_aux.float().reshape(-1, 1, 1).expand(-1, q.shape[0], 1)]
    weights = torch.cat([logits, *sinks], dim=-1).softmax(dim=-1)[..., :1]
    result = torch.einsum("htk,kd->thd", weights, value).to(q.dtype)
    if out is not None:
        out.copy_(result)
    return result


def output_of(module, ranks, sinks):
    """Run the layer's forward on a prompt of one token, whose logit is 0 and whose value is 1."""
    impl = object.__new__(module.FlashAttentionImpl)
    impl.__dict__ |= {
        "scale": 1.0, "kv_cache_dtype": "auto", "head_size": DIM, "num_heads": 1, "num_kv_heads": 1, "sinks": sinks,
        "sliding_window": (-1, -1), "alibi_slopes": None, "logits_soft_cap": 0.0, "attn_type": "DECODER",
        "vllm_flash_attn_version": 3, "supports_quant_query_input": False, "dcp_world_size": ranks,
        "batch_invariant_enabled": False,
        "fa4_hd256": False,
    }  # fmt: skip
    one = torch.ones(1)
    layer = SimpleNamespace(_q_scale=one, _k_scale=one, _v_scale=one)
    ends, length = torch.tensor([0, 1], dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    metadata = Metadata(
        num_actual_tokens=1, query_start_loc=ends, seq_lens=length, max_query_len=1, max_seq_len=1, causal=True,
        block_table=torch.ones(1, 1, dtype=torch.int32), scheduler_metadata=None, max_num_splits=0, use_cascade=False,
        max_dcp_context_kv_len=0,
    )  # fmt: skip
    query, key, value = torch.zeros(1, 1, DIM), torch.zeros(1, 1, DIM), torch.ones(1, 1, DIM)
    cache = torch.cat([torch.zeros(2, 1, PAGE, DIM), torch.ones(2, 1, PAGE, DIM)], dim=-1)
    out = torch.empty_like(query)
    impl.forward(layer, query, key, value, cache, metadata, out)
    return out[0, 0, 0].item()


module = flash_attention()
module.flash_attn_varlen_func = attend
for ranks in (1, 2):
    for words, sinks, due in (("without sinks", None, 1.0), ("with a sink of 0", torch.zeros(1), 0.5)):
        with code_of_the_release(f"ranks {ranks}, {words}"):
            found = output_of(module, ranks, sinks)
        line = f"ranks {ranks}, {words}: {found}" + (f" instead of {due}" if found != due else "")
        show(line, wrong=found != due)
finish()
