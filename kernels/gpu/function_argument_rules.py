"""The word of FlashInfer 0.7.2 on the arguments of functions without a plan, as in `argument_rules`."""

from typing import Final

from attnfuzz.reference.arguments import ArgumentForm, Rules, promised, refused, unsaid, without

_F = ArgumentForm
_STRIDES = (_F.QUERY_ELEMENTS_APART, _F.KEYS_GAPS, _F.VALUES_GAPS)
_OUT = (_F.OUT_GAPS, _F.OUT_HEADS_FIRST)
_TENSOR_OR_NUMBER = "docstring: Union[float, torch.Tensor]"
_DEPENDENT = (_F.DEPENDENT_LAUNCH, _F.NO_DEPENDENT_LAUNCH)

_SINGLE: Rules = (
    *promised('docstring: "if not provided, will be set to 1.0"', _F.K_SCALE_DEFAULT, _F.V_SCALE_DEFAULT),
    *promised('docstring: "Defaults to -1"', _F.WINDOW_DEFAULT),
    *promised('docstring: "if not provided, will be set to 0"', _F.SOFT_CAP_DEFAULT),
    *promised('docstring: "If greater than 0, the logits will be capped"', _F.SOFT_CAP_NEGATIVE),
    *unsaid(_F.SCALE_TENSOR, _F.WINDOW_FAR),
)

SINGLE_PREFILL: Final[Rules] = (
    *_SINGLE,
    *unsaid(*_STRIDES),
    *promised('docstring: "if not provided, will be set to 1.0 / sqrt(head_dim_qk)"', _F.SCALE_DEFAULT),
    *promised("docstring: Optional[Union[float, torch.Tensor]]", _F.K_SCALE_TENSOR, _F.V_SCALE_TENSOR),
    # SinglePrefillWithKVCacheDispatched divides by the number of query tiles (attention/prefill.cuh).
    *unsaid(_F.CALL_WITHOUT_QUERIES),
    *promised('docstring of o_dtype: "if not provided, will be set to the same as the q"', _F.OUT_DTYPE_GIVEN),
)
"""single_prefill_with_kv_cache."""

TENSOR_CORE_DECODE: Final[Rules] = (
    *_SINGLE,
    *unsaid(*_STRIDES, _F.K_SCALE_TENSOR, _F.V_SCALE_TENSOR),
    *promised('docstring: "if not provided, will be set to 1 / sqrt(head_dim)"', _F.SCALE_DEFAULT),
)
"""single_decode_with_kv_cache(use_tensor_cores=True)."""

SINGLE_DECODE: Final[Rules] = (
    *without(TENSOR_CORE_DECODE, *_STRIDES),
    *refused("csrc/single_decode.cu: q, k and v are checked to be contiguous (CHECK_INPUT)", *_STRIDES),
)
"""The same on CUDA cores."""

_DENSE_STATES = "csrc/cascade.cu: states are checked to be contiguous (CHECK_INPUT)"
MERGES: Final[Rules] = (
    *refused(_DENSE_STATES, _F.STATES_GAPS, _F.STATE_LSES_GAPS),
    *unsaid(_F.STATE_LSES_FLOAT64, _F.STATE_LSES_16_BITS, _F.MASK_GAPS),
    # The docstrings give the formula alone, in which NaN times a weight of 0 is NaN.
    *unsaid(_F.STATES_NAN),
)
"""merge_state, merge_states and merge_state_in_place."""

_IN_64_BITS = (_F.TABLE_INT64, _F.LENGTHS_INT64)
_TRTLLM: Rules = (
    *unsaid(*_IN_64_BITS, _F.LENGTHS_GAPS, *_STRIDES, *_OUT, _F.LSE_HEADS_FIRST),
    *promised(_TENSOR_OR_NUMBER, _F.SCALE_TENSOR, _F.V_SCALE_TENSOR),
    *promised("docstring: enable_pdl", *_DEPENDENT),
)

_SCHEDULED: Rules = promised(
    'docstring of length_aware_schedule, since 0.7.4: "Other calls and backends ignore it"', _F.LENGTH_AWARE
)

TRTLLM_MHA: Final[Rules] = (
    *_TRTLLM,
    *unsaid(_F.QUERY_STARTS_INT64, _F.QUERY_STARTS_GAPS, _F.KEY_STARTS_GAPS, _F.WINDOW_FAR),
    *promised('docstring: "output tensor, if not provided, will be allocated"', _F.OUT_RETURNED),
    *promised(
        'docstring of lse: "If return_lse is True and this is None, a buffer will be allocated"', _F.LSE_RETURNED
    ),
    *promised('docstring: "Defaults to -1"', _F.WINDOW_DEFAULT),
    *refused("csrc/trtllm_fmha_kernel_launcher.cu: attention_sinks must be a float tensor (checked)", _F.SINKS_16_BITS),
    *_SCHEDULED,
)
"""trtllm_batch_decode_with_kv_cache and trtllm_batch_context_with_kv_cache."""

TRTLLM_MLA: Final[Rules] = (
    *_TRTLLM,
    *unsaid(_F.QUERY_STARTS_INT64, _F.QUERY_STARTS_GAPS, _F.KEY_STARTS_GAPS),
    *promised("docstrings of both: out and lse are optional", _F.OUT_RETURNED, _F.LSE_RETURNED),
)
"""trtllm_batch_decode_with_kv_cache_mla and trtllm_ragged_attention_deepseek, with a merge of states."""

# trtllm_fmha_v2_prefill has no enable_pdl, and needs a bmm2_scale.
HOPPER_TRTLLM_MHA: Final[Rules] = (
    *unsaid(*_IN_64_BITS, _F.LENGTHS_GAPS, _F.QUERY_STARTS_INT64, _F.QUERY_STARTS_GAPS, _F.KEY_STARTS_GAPS),
    *unsaid(_F.QUERY_ELEMENTS_APART, *_OUT, _F.SINKS_16_BITS, _F.WINDOW_FAR),
    # "When using trtllm-gen backend, it can be a torch.Tensor": of XQA, to which these go on Hopper, nothing is said.
    *unsaid(_F.SCALE_TENSOR, _F.V_SCALE_TENSOR, _F.V_SCALE_DEFAULT),
    *promised('docstrings of both: "if not provided, will be allocated with out_dtype"', _F.OUT_RETURNED),
    *promised('docstrings of both: "Defaults to -1"', _F.WINDOW_DEFAULT),
    *_SCHEDULED,
)
"""trtllm_batch_decode_with_kv_cache on XQA, and trtllm_fmha_v2_prefill. A form has the weaker word of the two: where
one refuses it, the other may take it."""

HOPPER_TRTLLM_MLA: Final[Rules] = (
    *unsaid(_F.QUERY_STARTS_INT64, _F.QUERY_STARTS_GAPS, _F.KEY_STARTS_GAPS, _F.PAGE_IDS_INT64, _F.PAGE_IDS_GAPS),
    *unsaid(_F.LENGTHS_INT64, _F.LENGTHS_GAPS, *_STRIDES, *_OUT, _F.LSE_HEADS_FIRST),
    *promised("docstrings of both runs: out and lse are optional", _F.OUT_RETURNED, _F.LSE_RETURNED),
    *promised(
        'docstring of the ragged run: "if not provided, will be set to 1.0"', _F.K_SCALE_DEFAULT, _F.V_SCALE_DEFAULT
    ),
    *promised('docstring of the ragged plan: "Defaults to -1"', _F.WINDOW_DEFAULT),
    *promised('docstring of the ragged plan: "if not provided, will be set to 0"', _F.SOFT_CAP_DEFAULT),
    *promised('docstring of the ragged plan: "If greater than 0, the logits will be capped"', _F.SOFT_CAP_NEGATIVE),
)
"""BatchMLAPagedAttentionWrapper and BatchPrefillWithRaggedKVCacheWrapper on FA3, with a merge of states."""

_CUDNN: Rules = (*unsaid(*_IN_64_BITS, _F.LENGTHS_GAPS, *_STRIDES, _F.SCALE_TENSOR),)

CUDNN_DECODE: Final[Rules] = (
    *_CUDNN,
    *refused('docstring: "out/lse must be contiguous" (checked)', *_OUT, _F.LSE_HEADS_FIRST),
    *refused("docstring: sinks are torch.float32 (checked)", _F.SINKS_16_BITS),
    *promised('docstring: "allocated internally when None"', _F.OUT_RETURNED, _F.LSE_RETURNED),
    *promised('docstring: "-1 (default) disables the window"', _F.WINDOW_DEFAULT),
    *unsaid(_F.WINDOW_FAR),
)
"""cudnn_batch_decode_with_kv_cache."""

CUDNN_PREFILL: Final[Rules] = (
    *_CUDNN,
    # Since 0.7.4, out and lse "must be contiguous" (checked), and sinks are float32 (checked).
    *unsaid(*_OUT, _F.LSE_HEADS_FIRST, _F.OFFSETS_INT64, _F.SINKS_16_BITS, _F.WINDOW_FAR),
    # Before 0.7.4, a returned LSE has the shape (batch_size, max_token_per_sequence, num_heads_qo).
    *promised('docstring: "Allocated internally when None"', _F.OUT_RETURNED),
    *promised('docstring: "Optional output dtype; defaults to q.dtype"', _F.OUT_DTYPE_GIVEN),
    *promised("docstring of lse_base: log2 or ln", _F.LSE_BASE_E),
    *promised("docstring of batch_offsets_units: elements or tokens", _F.OFFSETS_IN_TOKENS),
)
"""cudnn_batch_prefill_with_kv_cache."""
