"""vLLM's FlashInfer backend scales queries that it has not quantised. Needs torch, triton and an unpacked vllm 0.33.0.

`FlashInferImpl.forward` runs on one query and two keys, on the CPU. Only vLLM's module of the backend is imported,
with stand-ins for its imports. FlashInfer's functions are replaced by attention in torch that applies the
factors as FlashInfer documents them: logits by sm_scale * q_scale * k_scale, or by bmm1_scale, outputs by v_scale, or
by bmm2_scale. vLLM's own kernel dequantises the cache, in Triton's interpreter.
"""

import logging
from types import SimpleNamespace

from _template import finish, requirements, show
from _triton import NoGpu
from _vllm import code_of_the_release, module_of

with requirements("torch triton"):
    import torch
    import triton

FP8 = torch.float8_e4m3fn
PAGE, DIM = 16, 16
MEMBERS = {
    "tl": triton.language,
    "triton": triton,
    "current_platform": NoGpu(),
    "init_logger": logging.getLogger,
    "is_quantized_kv_cache": lambda dtype: dtype != "auto",
    "canonicalize_singleton_dim_strides": lambda tensor: tensor,
    "is_strictly_contiguous": lambda tensor: tensor.is_contiguous(),
    "get_flashinfer_layout_string": lambda _: "HND",
}


def attend(query, key, value, scale):
    """Attend to the keys [heads, tokens, dim] of a page, of which there are two."""
    weights = (query.float() @ key[0, :2].float().T * scale).softmax(dim=-1)
    return weights @ value[0, :2].float()


def layer_of(module, cache_dtype, query, cache, prefill, **scales):
    """Run the layer's forward on a prefill of one token. Return its output, the weight of the second key."""
    impl = object.__new__(module.FlashInferImpl)
    impl.__dict__ |= {
        "scale": 1.0, "kv_cache_dtype": cache_dtype, "head_size": DIM, "num_kv_heads": 1, "sliding_window": (-1, -1),
        "window_left": -1, "logits_soft_cap": None, "sinks": None, "is_kvcache_nvfp4": False, "nvfp4_fa2": False,
        "nvfp4_trtllm": False, "bmm1_scale": None, "bmm2_scale": None, "o_sf_scale": None, "dcp_world_size": 1,
        "_multi_ctas_kv_counter_buffer": None,
    }  # fmt: skip
    layer = SimpleNamespace()
    for name, scale in ({"q": 1.0, "k": 1.0, "v": 1.0} | scales).items():
        setattr(layer, f"_{name}_scale", torch.tensor(scale))
        setattr(layer, f"_{name}_scale_float", scale)
    metadata = SimpleNamespace(
        prefill=prefill, decode=None, num_actual_tokens=1, num_decode_tokens=0, num_prefill_tokens=1, num_prefills=1,
        kv_cache_layout=SimpleNamespace(layer_view_order=(0, 1, 2, 3)), causal=True,
        q_data_type_prefill=query.dtype, q_data_type_decode=query.dtype,
    )  # fmt: skip
    out = torch.empty_like(query)
    impl.forward(layer, query, None, None, cache, metadata, out)
    return out[0, 0, 0].item()


module = module_of("v1.attention.backends.flashinfer", MEMBERS)


class Wrapper(module.BatchPrefillWithPagedKVCacheWrapper):
    """FlashInfer's wrapper of prefills, planned for this batch."""

    _window_left, _logits_soft_cap, _sm_scale, _causal = -1, 0.0, 1.0, True

    def run(self, query, cache, *, out, q_scale=1.0, k_scale=1.0, v_scale=1.0, **_):
        """Attend by the factors."""
        out[0] = attend(query[0], cache[0][1], cache[1][1], q_scale * k_scale) * v_scale


def context(*, query, kv_cache, block_tables, bmm1_scale, bmm2_scale, out, **_):
    """Attend as trtllm-gen's prefill documents its factors."""
    key, value = kv_cache[block_tables[0, 0]]
    out[0] = attend(query[0], key, value, bmm1_scale) * bmm2_scale


module.trtllm_batch_context_with_kv_cache = context
vars(module)["_get_trtllm_workspace_buffer"] = lambda: torch.zeros(1)
query = torch.full((1, 1, DIM), 0.25, dtype=torch.bfloat16)
# Logits of 0 and 1, values of 0 and 1. Page 0 is the null block.
cache = torch.zeros(2, 1, PAGE, 2 * DIM, dtype=torch.bfloat16)
cache[1, 0, 1, :DIM], cache[1, 0, 1, DIM:] = 0.25, 1.0
due = torch.tensor([0.0, 1.0]).softmax(0)[1].item()
ints = torch.ones(1, 1, dtype=torch.int32)
native = module.TRTLLMPrefill(ints, ints[0], ints[0], ints[0], 1, 2)
for words, dtype, prefill, scales in (
    ("#53754: 16 bits, scale of queries 1", "auto", module.FIPrefill(Wrapper()), {}),
    ("#53754: 16 bits, scale of queries 0.5", "auto", module.FIPrefill(Wrapper()), {"q": 0.5}),
    ("#48016: FP8 cache that is dequantised, scales 1", "fp8", native, {}),
    ("#48016: FP8 cache that is dequantised, scale of K 0.5", "fp8", native, {"k": 0.5}),
    ("#48016: FP8 cache that is dequantised, scale of V 0.5", "fp8", native, {"v": 0.5}),
    ("#48016: FP8 cache that is dequantised, scale of queries 0.5", "fp8", native, {"q": 0.5}),
):
    stored = cache
    if dtype == "fp8":
        stored = cache.clone()
        stored[..., :DIM] /= scales.get("k", 1.0)
        stored[..., DIM:] /= scales.get("v", 1.0)
        stored = stored.to(FP8)
    with code_of_the_release(words):
        found = layer_of(module, dtype, query, stored, prefill, **scales)
    wrong = abs(found - due) > 0.01
    show(f"{words}: {found:.4f}" + (f" instead of {due:.4f}" if wrong else ""), wrong=wrong)
finish()
