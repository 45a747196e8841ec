"""vLLM's FlashInfer backend for MLA decodes requests with different numbers of drafts as if equal.

`FlashInferMLAImpl.forward_mqa` runs on the CPU, as on the first of two ranks that share the keys of a request. Only
vLLM's module of the backend is imported, with stand-ins for its imports. FlashInfer's function is replaced by one that
returns the request and the number of keys of each query, by the contract of its arguments. Needs torch and an unpacked
vllm.
"""

import logging
from types import SimpleNamespace

from _template import finish, requirements, show
from _vllm import Enumeration, code_of_the_release, module_of

with requirements("torch"):
    import torch

RANKS, DIM = 2, 8
MEMBERS = {
    "init_logger": lambda name: SimpleNamespace(warning_once=logging.getLogger(name).debug),
    "is_quantized_kv_cache": lambda dtype: dtype != "auto",
    "QueryLenSupport": Enumeration("QueryLenSupport", (), {}),
}


def decode(*, query, causal_seqlens_kv_global, cum_seq_lens_q=None, **_):
    """Return (request, number of keys on all ranks) of each query, by FlashInfer's arguments."""
    bounds = causal_seqlens_kv_global.tolist()
    if cum_seq_lens_q is None:
        if len(bounds) != query.shape[0]:
            raise ValueError(f"causal_seqlens_kv_global must have shape ({query.shape[0]},), got ({len(bounds)},)")
        counts = [query.shape[1]] * query.shape[0]
    else:
        counts = cum_seq_lens_q.diff().tolist()
    rows = [
        (request, bound - count + 1 + row)
        for request, (bound, count) in enumerate(zip(bounds, counts, strict=True))
        for row in range(count)
    ]
    out = torch.tensor(rows, dtype=torch.float32).unsqueeze(1)
    return out, out[..., 0]


def decoded(module, tokens, keys):
    """Run the layer on a batch of drafts. Return the request and the number of keys of each query."""
    total, starts = sum(tokens), torch.tensor([0, *tokens]).cumsum(0).int()
    impl = object.__new__(module.FlashInferMLAImpl)
    impl.__dict__ |= {
        "scale": 1.0, "kv_cache_dtype": "auto", "bmm1_scale": None, "bmm2_scale": None, "qk_nope_head_dim": DIM,
        "kv_lora_rank": DIM, "qk_rope_head_dim": 0, "need_to_return_lse_for_decode": True, "dcp_world_size": RANKS,
        "dcp_rank": 0,
    }  # fmt: skip
    lengths = torch.tensor(keys).int()
    of_decodes = SimpleNamespace(
        block_table=torch.arange(1, 1 + len(tokens)).int().unsqueeze(1), seq_lens=(lengths + 1) // RANKS,
        dcp_tot_seq_lens=lengths, query_start_loc=starts, max_query_len=max(tokens),
    )  # fmt: skip
    metadata = SimpleNamespace(
        decode=of_decodes, causal=True, num_decodes=len(tokens), num_decode_tokens=total, max_seq_len=max(keys)
    )
    query, cache = torch.zeros(total, RANKS, DIM), torch.zeros(4, 32, DIM)
    out, _ = vars(type(impl))["forward_mqa"](impl, query, cache, metadata, None)
    return [(int(request), int(count)) for request, count in out[:, 0].tolist()]


module = module_of("v1.attention.backends.mla.flashinfer_mla", MEMBERS)
module.trtllm_batch_decode_with_kv_cache_mla = decode
vars(module)["_get_workspace_buffer"] = lambda _: None
if module.FlashInferMLAMetadataBuilder.query_len_support != "VARLEN":
    show("The builder calls drafts of different numbers prefills: this is before the change.")
    finish()
for tokens, keys in (((3, 3), (40, 17)), ((4, 2), (40, 17)), ((4, 1), (40, 17))):
    words = f"requests of {' and '.join(map(str, tokens))} tokens, {' and '.join(map(str, keys))} keys"
    due = [
        (request, length - count + 1 + row)
        for request, (count, length) in enumerate(zip(tokens, keys, strict=True))
        for row in range(count)
    ]
    try:
        with code_of_the_release(words):
            found = decoded(module, tokens, keys)
    except ValueError as error:
        show(f"{words}: {error}", wrong=True)
    else:
        line = f"{words}: (request, keys) {found}" + (f" instead of {due}" if found != due else "")
        show(line, wrong=found != due)
finish()
