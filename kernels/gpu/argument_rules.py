"""FlashInfer's word on the forms of its arguments: docstrings, checks and annotations of 0.7.2.

A form that stands here without a source is one of which FlashInfer says nothing. Options of a plan are all promised: a
wrapper's layer has them, so that a step can't be made again without them.
"""

from typing import Final

from attnfuzz.reference.arguments import ArgumentForm, Rules, promised, refused, unsaid, without

_F = ArgumentForm
_OUTPUTS = unsaid(_F.OUT_GAPS, _F.OUT_HEADS_FIRST, _F.LSE_HEADS_FIRST)
_RETURNED = promised(
    'docstring of run: "if not provided, will be allocated internally"', _F.OUT_RETURNED, _F.LSE_RETURNED
)
_SCALES_LEFT_OUT = promised(
    'docstring of run: "if not provided, will be set to 1.0"', _F.K_SCALE_DEFAULT, _F.V_SCALE_DEFAULT
)
_PLANNED = (
    *promised('docstring of plan: "if not provided, will be set to 1.0 / sqrt(head_dim)"', _F.SCALE_DEFAULT),
    *promised('docstring of plan: "Defaults to -1"', _F.WINDOW_DEFAULT),
    *promised('docstring of plan: "if not provided, will be set to 0"', _F.SOFT_CAP_DEFAULT),
    *promised('docstring of plan: "If greater than 0, the logits will be capped"', _F.SOFT_CAP_NEGATIVE),
    *unsaid(_F.WINDOW_FAR),
    *promised("annotation of plan: Union[str, torch.dtype]", _F.DTYPES_BY_NAME),
    *promised('docstring of plan: "The data type of the output tensor"', _F.OUT_DTYPE_GIVEN),
    *promised('docstring of plan: "Whether to copy the input tensors to the device asynchronously"', _F.BLOCKING),
)
_PDL = promised("docstring of run: enable_pdl", _F.DEPENDENT_LAUNCH, _F.NO_DEPENDENT_LAUNCH)
_LSE_OPTIONS = promised("docstring of run: lse_base and lse_layout", _F.LSE_BASE_E, _F.LSE_LAYOUT)
_WINDOW_AT_RUN = promised(
    'docstring of run: None, or equal to the value passed to plan ("the kernel asserts this")', _F.WINDOW_AT_RUN
)
_SPLITS = promised("docstring of plan: fixed_split_size and disable_split_kv", _F.SPLIT_OF_A_PAGE, _F.SPLIT_DISABLED)
_KEY_LENGTHS = promised("docstring of plan: seq_lens", _F.KEY_LENGTHS_GIVEN)

_STARTS = unsaid(_F.QUERY_STARTS_INT64, _F.QUERY_STARTS_GAPS, _F.KEY_STARTS_GAPS)
_PAGES = unsaid(_F.PAGE_IDS_INT64, _F.PAGE_IDS_GAPS)
_LENGTHS = unsaid(_F.LENGTHS_INT64, _F.LENGTHS_GAPS)
_STRIDES = unsaid(_F.QUERY_ELEMENTS_APART, _F.KEYS_GAPS, _F.VALUES_GAPS)
_PREFILL = (*_STARTS, *_STRIDES, *_OUTPUTS, *_RETURNED, *_LSE_OPTIONS, *_SCALES_LEFT_OUT, *_PLANNED, *_PDL)
_OF_K_AND_V = (_F.KEYS_GAPS, _F.VALUES_GAPS)
_EQUAL_STRIDES = "csrc/batch_prefill_sm90.cu: strides of K and V are checked to be equal"

PAGED_PREFILL: Final[Rules] = (
    *_PREFILL,
    *_PAGES,
    *_LENGTHS,
    *promised("docstring of run: Optional[Union[float, torch.Tensor]]", _F.K_SCALE_TENSOR, _F.V_SCALE_TENSOR),
    *_WINDOW_AT_RUN,
    *_KEY_LENGTHS,
    *_SPLITS,
    *unsaid(_F.MASK_GAPS, _F.SINKS_16_BITS),
)
"""BatchPrefillWithPagedKVCacheWrapper on FA2."""

FA3_PAGED_PREFILL: Final[Rules] = (
    *without(PAGED_PREFILL, *_OF_K_AND_V, _F.MASK_GAPS),
    *refused(_EQUAL_STRIDES, *_OF_K_AND_V),
)
"""The same on FA3."""

RAGGED_PREFILL: Final[Rules] = (*_PREFILL, *unsaid(_F.K_SCALE_TENSOR, _F.V_SCALE_TENSOR))
"""BatchPrefillWithRaggedKVCacheWrapper on FA3."""

FA2_RAGGED_PREFILL: Final[Rules] = (*RAGGED_PREFILL, *_SPLITS, *unsaid(_F.MASK_GAPS))
"""The same on FA2."""

FA2_SINKS: Final[Rules] = without(PAGED_PREFILL, _F.MASK_GAPS)
"""BatchAttentionWithAttentionSinkWrapper on FA2: its plan and its run are those of the wrapper for prefill."""
FA3_SINKS: Final[Rules] = FA3_PAGED_PREFILL
"""The same on FA3."""

_INT32 = "docstring of plan: dtype torch.int32; csrc/batch_decode.cu: CHECK_INPUT_TYPE"
BATCH_DECODE: Final[Rules] = (
    *refused(_INT32, _F.PAGE_IDS_INT64),
    *_LENGTHS,
    *unsaid(_F.PAGE_IDS_GAPS, _F.KEY_STARTS_GAPS, _F.QUERY_ELEMENTS_APART, _F.K_SCALE_TENSOR, _F.V_SCALE_TENSOR),
    *refused("csrc/batch_decode.cu: strides of K and V are checked to be equal", *_OF_K_AND_V),
    *_OUTPUTS,
    *_RETURNED,
    *_SCALES_LEFT_OUT,
    *_PLANNED,
    *_WINDOW_AT_RUN,
    *_KEY_LENGTHS,
    # fixed_split_size is "only supported by tensor core decode" (docstring of plan).
    *promised("docstring of plan: disable_split_kv", _F.SPLIT_DISABLED),
    *_PDL,
    *unsaid(_F.SINKS_16_BITS),
)
"""BatchDecodeWithPagedKVCacheWrapper on CUDA cores."""

# Its wrapper for graphs has buffers for each plan, so that SPLIT_OF_A_PAGE is not for it.
GRAPH_DECODE: Final[Rules] = without(BATCH_DECODE, _F.SINKS_16_BITS)
"""CUDAGraphBatchDecodeWithPagedKVCacheWrapper on CUDA cores."""

GRAPH_TENSOR_CORE_DECODE: Final[Rules] = (
    *without(GRAPH_DECODE, *_OF_K_AND_V, _F.PAGE_IDS_INT64),
    *unsaid(*_OF_K_AND_V, _F.PAGE_IDS_INT64),
)
"""The same on tensor cores, whose kernels are those of prefill on FA2."""

TENSOR_CORE_DECODE: Final[Rules] = (
    *GRAPH_TENSOR_CORE_DECODE,
    *promised('docstring of plan: fixed_split_size, "only supported by tensor core decode"', _F.SPLIT_OF_A_PAGE),
)
"""BatchDecodeWithPagedKVCacheWrapper(use_tensor_cores=True) on FA2."""

FA3_DECODE: Final[Rules] = (
    *without(GRAPH_TENSOR_CORE_DECODE, *_OF_K_AND_V),
    *refused(_EQUAL_STRIDES, *_OF_K_AND_V),
)
"""The same on FA3."""

FA2_SINKS_DECODE: Final[Rules] = (*TENSOR_CORE_DECODE, *unsaid(_F.SINKS_16_BITS))
"""BatchDecodeWithAttentionSinkWrapper on FA2."""
FA3_SINKS_DECODE: Final[Rules] = (*FA3_DECODE, *unsaid(_F.SINKS_16_BITS))
"""The same on FA3."""

_OUT_AND_SINKS = (_F.OUT_GAPS, _F.OUT_HEADS_FIRST, _F.SINKS_16_BITS)
_TENSOR_OR_NUMBER = "docstring: Union[float, torch.Tensor]"
XQA: Final[Rules] = (
    *unsaid(
        _F.TABLE_INT64,
        _F.LENGTHS_GAPS,
        _F.QUERY_STARTS_INT64,
        *_OUT_AND_SINKS,
        _F.WINDOW_FAR,
    ),
    *_STRIDES,
    *promised('docstring: "if not provided, will be allocated with query.dtype"', _F.OUT_RETURNED),
    *promised(_TENSOR_OR_NUMBER, _F.SCALE_TENSOR, _F.V_SCALE_TENSOR),
    *promised("signature: bmm2_scale = 1.0", _F.V_SCALE_DEFAULT),
    *promised('docstring: "Defaults to -1"', _F.WINDOW_DEFAULT),
    *promised("docstring: enable_pdl", _F.DEPENDENT_LAUNCH, _F.NO_DEPENDENT_LAUNCH),
)
"""xqa_batch_decode_with_kv_cache."""

FMHA_V2: Final[Rules] = (
    *_STARTS,
    *_LENGTHS,
    *_STRIDES,
    *unsaid(*_OUT_AND_SINKS, _F.WINDOW_FAR),
    *promised('docstring: "If not provided, will be allocated with out_dtype"', _F.OUT_RETURNED),
    *promised('docstring: "Defaults to -1"', _F.WINDOW_DEFAULT),
)
"""trtllm_fmha_v2_prefill on packed keys and values."""

FMHA_V2_PAGED: Final[Rules] = (
    *without(FMHA_V2, *_OF_K_AND_V),
    *refused("csrc/fmha_v2_run.cu: block_tables must be int32", _F.TABLE_INT64),
)
"""The same on a pool of pages."""

MLA: Final[Rules] = (
    *_STARTS,
    *_PAGES,
    *_LENGTHS,
    *unsaid(_F.QUERY_ELEMENTS_APART),
    *_OUTPUTS,
    *promised("docstring of run: out and lse are optional", _F.OUT_RETURNED, _F.LSE_RETURNED),
)
"""BatchMLAPagedAttentionWrapper."""

_LISTS = (*_STARTS, *_PAGES, *_LENGTHS)

HOLISTIC: Final[Rules] = (
    *_LISTS,
    *_STRIDES,
    *_OUTPUTS,
    *promised('docstring of run: "If None, a new tensor is allocated"', _F.OUT_RETURNED),
    *promised('docstring of run: "Allocated if None"', _F.LSE_RETURNED),
    *promised('docstring of plan: "If None, defaults to 1/sqrt(head_dim_qk)"', _F.SCALE_DEFAULT),
    *promised('docstring of plan: "None or 0 disables capping"', _F.SOFT_CAP_DEFAULT),
    *unsaid(_F.SOFT_CAP_NEGATIVE),
    *promised("docstring of run: Optional[torch.Tensor]", _F.K_SCALE_TENSOR, _F.V_SCALE_TENSOR),
    *promised("signature of run: k_scale = None, v_scale = None", _F.K_SCALE_DEFAULT, _F.V_SCALE_DEFAULT),
)
"""BatchAttention."""

POD: Final[Rules] = (
    *_LISTS,
    *_STRIDES,
    *promised(
        'docstrings: "If None, defaults to 1 / sqrt(head_dim)"; sm_scale_p "Defaults to 1 / sqrt(head_dim)"',
        _F.SCALE_DEFAULT,
    ),
    *promised('docstring of plan: "Defaults to -1"; signature of run: window_left_p = -1', _F.WINDOW_DEFAULT),
    *unsaid(_F.WINDOW_FAR),
    *promised("annotation of plan: Optional[Union[str, torch.dtype]]", _F.DTYPES_BY_NAME),
    *promised('docstring of plan: "Whether to copy the input tensors to the device asynchronously"', _F.BLOCKING),
    *_PDL,
)
"""PODWithPagedKVCacheWrapper and BatchPODWithPagedKVCacheWrapper, which return their outputs."""

CASCADE_LEVELS: Final[Rules] = (
    *_LISTS,
    *unsaid(_F.QUERY_ELEMENTS_APART),
    *refused(_EQUAL_STRIDES, *_OF_K_AND_V),
    *promised('docstring of plan: "if not provided, will be set to 1.0 / sqrt(head_dim)"', _F.SCALE_DEFAULT),
    *promised('docstring of plan: "Defaults to -1"', _F.WINDOW_DEFAULT),
    *promised('docstring of plan: "if not provided, will be set to 0"', _F.SOFT_CAP_DEFAULT),
    *promised('docstring of plan: "If greater than 0, the logits will be capped"', _F.SOFT_CAP_NEGATIVE),
    *unsaid(_F.WINDOW_FAR),
    *promised("docstring of plan: Optional[Union[str, torch.dtype]]", _F.DTYPES_BY_NAME),
)
"""MultiLevelCascadeAttentionWrapper, whose levels run on FA3."""

SHARED_PREFIX_PREFILL: Final[Rules] = (
    *_LISTS,
    *unsaid(_F.QUERY_ELEMENTS_APART, _F.SHARED_KEYS_GAPS),
    *refused(_EQUAL_STRIDES, *_OF_K_AND_V),
    *promised('docstring of forward: "if not provided, will be set to 1 / sqrt(head_dim)"', _F.SCALE_DEFAULT),
)
"""BatchPrefillWithSharedPrefixPagedKVCacheWrapper."""

SHARED_PREFIX_DECODE: Final[Rules] = (
    *refused("docstring of begin_forward: dtype int32; csrc/batch_decode.cu: CHECK_INPUT_TYPE", _F.PAGE_IDS_INT64),
    *unsaid(_F.PAGE_IDS_GAPS, _F.KEY_STARTS_GAPS),
    *_LENGTHS,
    *unsaid(_F.QUERY_ELEMENTS_APART, _F.SHARED_KEYS_GAPS),
    *refused("csrc/batch_decode.cu: strides of K and V are checked to be equal", *_OF_K_AND_V),
    *promised("docstring of begin_forward: Union[str, torch.dtype]", _F.DTYPES_BY_NAME),
)
"""BatchDecodeWithSharedPrefixPagedKVCacheWrapper, whose part in pages runs on CUDA cores."""

VARIABLE_SPARSE: Final[Rules] = (
    *_STRIDES,
    *unsaid(_F.SIZES_INT64, _F.MASK_GAPS),
    *without(_PLANNED, _F.WINDOW_DEFAULT, _F.WINDOW_FAR, _F.OUT_DTYPE_GIVEN),
    *_PDL,
)
"""VariableBlockSparseAttentionWrapper, whose outputs have another layout than those that it returns."""

BLOCK_SPARSE: Final[Rules] = (
    *without(VARIABLE_SPARSE, _F.SIZES_INT64),
    *unsaid(_F.PAGE_IDS_INT64, _F.PAGE_IDS_GAPS, _F.KEY_STARTS_GAPS),
    *_OUTPUTS,
    *_RETURNED,
)
"""BlockSparseAttentionWrapper."""
