"""Arguments of FlashInfer's entry points that no native kernel implements, with the values that have no effect."""

from typing import Any, Final

_SHARED: Final[dict[str, tuple[object, ...]]] = {
    "o_sf_scale": (None,),
    "o_sf_vec_size": (None,),
    "enable_pdl": (None, True, False),
    "skip_softmax_threshold_scale_factor": (None,),
    "uses_shared_paged_kv_idx": (True,),
    "multi_ctas_kv_counter_buffer": (None,),
    "use_fp16_softmax": (None, False),
    "uses_spcompress": (None, False),
}

_CONTEXT_PARALLEL: Final[dict[str, tuple[object, ...]]] = {
    "cp_world": (1,),
    "cp_rank": (0,),
    "causal_seqlens_kv_global": (None,),
}


OWN: Final = frozenset({"v_scales_swizzled", "packed_custom_mask", "mask_indptr"})
"""Parameters of the native functions that FlashInfer's lack: its kernels imply them, or its wrappers have them."""


def _shared(*names: str) -> dict[str, tuple[object, ...]]:
    return {name: _SHARED[name] for name in names}


ACCEPTED: Final[dict[str, dict[str, tuple[object, ...]]]] = {
    "trtllm_batch_decode_with_kv_cache": {
        **_shared("o_sf_scale", "o_sf_vec_size", "enable_pdl", "skip_softmax_threshold_scale_factor"),
        **_shared("uses_shared_paged_kv_idx", "multi_ctas_kv_counter_buffer"),
        **_CONTEXT_PARALLEL,
        "backend": ("auto", "trtllm-gen"),
        "o_scale": (1.0, None),
        "mask": (None,),
        "max_q_len": (None,),
        "cum_seq_lens_q": (None,),
        "bmm1_scale_log2": (None,),
        "enable_block_sparse_attention": (False,),
        "bf16q_fp8kv_transform_mode": (None,),
        "request_order": (None,),
        "request_order_plan": (None,),
        # Since 0.7.4. Lists of tokens are another op's (`token_sparse`); the schedule is the cake backend's.
        "sparse_top_k": (0,),
        "length_aware_schedule": (False, True),
    },
    "trtllm_batch_context_with_kv_cache": {
        **_shared("o_sf_scale", "o_sf_vec_size", "enable_pdl", "skip_softmax_threshold_scale_factor"),
        **_shared("uses_shared_paged_kv_idx", "multi_ctas_kv_counter_buffer", "use_fp16_softmax", "uses_spcompress"),
        "backend": ("trtllm-gen",),
    },
    "trtllm_ragged_attention_deepseek": {
        **_shared("skip_softmax_threshold_scale_factor", "use_fp16_softmax", "uses_spcompress"),
        "sage_attn_sfs": ((None, None, None, None),),
        "num_elts_per_sage_attn_blk": ((0, 0, 0, 0),),
        "backend": ("trtllm-gen",),
        "skip_all_rows_active_check": (True,),
    },
    "trtllm_batch_decode_with_kv_cache_mla": {
        **_shared("skip_softmax_threshold_scale_factor", "enable_pdl", "uses_shared_paged_kv_idx"),
        **_shared("multi_ctas_kv_counter_buffer", "use_fp16_softmax"),
        **_CONTEXT_PARALLEL,
        "sparse_mla_top_k": (0,),
        "backend": ("auto", "trtllm-gen"),
        "is_var_seq": (True, False),
        "cute_dsl_impl": ("auto",),
        "kv_scale_format": ("auto",),
        "cum_seq_lens_q": (None,),
        "max_q_len": (None,),
        "sparse_mla_top_k_lens": (None,),
        "enable_dcp": (False,),
        "return_lse_base": (None, "base2"),
    },
}
"""The other arguments of each entry point in FlashInfer's releases, with the values that have no effect."""


def reject_others(function: str, others: dict[str, Any]) -> None:
    """Raise NotImplementedError for an argument that has an effect, TypeError for one unknown to FlashInfer too."""
    accepted = ACCEPTED[function]
    for name, value in others.items():
        if name not in accepted:
            raise TypeError(f"{function} has no argument {name}")
        if not any(value is harmless or _equal(value, harmless) for harmless in accepted[name]):
            described = f"a {type(value).__name__}" if hasattr(value, "shape") else repr(value)
            choices = " or ".join(repr(harmless) for harmless in accepted[name])
            raise NotImplementedError(f"native {function}: {name}={described} is unsupported, only {choices}")


def host_scale(name: str, scale: object) -> float:
    """Return `scale` as a number. Raises NotImplementedError for a tensor, which some FlashInfer backends take."""
    if not isinstance(scale, (float, int)):
        raise NotImplementedError(f"native kernels: {name} as a {type(scale).__name__} is unsupported, pass a float")
    return scale


def _equal(value: object, harmless: object) -> bool:
    return type(value) is type(harmless) and value == harmless
