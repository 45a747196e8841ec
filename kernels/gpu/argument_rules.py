"""FlashInfer's word on the forms of its arguments: docstrings, checks and annotations of 0.7.2.

A form that stands here without a source is one of which FlashInfer says nothing. Options of a plan are all promised: a
wrapper's layer has them, so that a step can't be made again without them.
"""

from collections.abc import Iterable
from typing import Final

from attnfuzz.reference.arguments import ArgumentForm, ArgumentRule, ArgumentStanding

_F = ArgumentForm
Rules = tuple[ArgumentRule, ...]


def _promised(source: str, *forms: ArgumentForm) -> Rules:
    return tuple(ArgumentRule(form, ArgumentStanding.PROMISED, source) for form in forms)


def _refused(source: str, *forms: ArgumentForm) -> Rules:
    return tuple(ArgumentRule(form, ArgumentStanding.REFUSED, source) for form in forms)


def _unsaid(*forms: ArgumentForm) -> Rules:
    return tuple(map(ArgumentRule, forms))


def _without(rules: Rules, forms: Iterable[ArgumentForm]) -> Rules:
    left_out = set(forms)
    return tuple(rule for rule in rules if rule.form not in left_out)


_OUTPUTS = _unsaid(_F.OUT_GAPS, _F.OUT_HEADS_FIRST, _F.LSE_HEADS_FIRST)
_RETURNED = _promised(
    'docstring of run: "if not provided, will be allocated internally"', _F.OUT_RETURNED, _F.LSE_RETURNED
)
_SCALES_LEFT_OUT = _promised(
    'docstring of run: "if not provided, will be set to 1.0"', _F.K_SCALE_DEFAULT, _F.V_SCALE_DEFAULT
)
_PLANNED = (
    *_promised('docstring of plan: "if not provided, will be set to 1.0 / sqrt(head_dim)"', _F.SCALE_DEFAULT),
    *_promised('docstring of plan: "Defaults to -1"', _F.WINDOW_DEFAULT),
    *_promised('docstring of plan: "if not provided, will be set to 0"', _F.SOFT_CAP_DEFAULT),
    *_promised("annotation of plan: Union[str, torch.dtype]", _F.DTYPES_BY_NAME),
    *_promised('docstring of plan: "The data type of the output tensor"', _F.OUT_DTYPE_GIVEN),
    *_promised('docstring of plan: "Whether to copy the input tensors to the device asynchronously"', _F.BLOCKING),
)
_PDL = _promised("docstring of run: enable_pdl", _F.DEPENDENT_LAUNCH, _F.NO_DEPENDENT_LAUNCH)
_LSE_OPTIONS = _promised("docstring of run: lse_base and lse_layout", _F.LSE_BASE_E, _F.LSE_LAYOUT)
_WINDOW_AT_RUN = _promised(
    'docstring of run: None, or equal to the value passed to plan ("the kernel asserts this")', _F.WINDOW_AT_RUN
)
_SPLITS = _promised("docstring of plan: fixed_split_size and disable_split_kv", _F.SPLIT_OF_A_PAGE, _F.SPLIT_DISABLED)
_KEY_LENGTHS = _promised("docstring of plan: seq_lens", _F.KEY_LENGTHS_GIVEN)

_STARTS = _unsaid(_F.QUERY_STARTS_INT64, _F.QUERY_STARTS_GAPS, _F.KEY_STARTS_GAPS)
_PAGES = _unsaid(_F.PAGE_IDS_INT64, _F.PAGE_IDS_GAPS)
_LENGTHS = _unsaid(_F.LENGTHS_INT64, _F.LENGTHS_GAPS)
_STRIDES = _unsaid(_F.QUERY_ELEMENTS_APART, _F.KEYS_GAPS, _F.VALUES_GAPS)
_PREFILL = (*_STARTS, *_STRIDES, *_OUTPUTS, *_RETURNED, *_LSE_OPTIONS, *_SCALES_LEFT_OUT, *_PLANNED, *_PDL)
_OF_K_AND_V = (_F.KEYS_GAPS, _F.VALUES_GAPS)

PAGED_PREFILL: Final[Rules] = (
    *_PREFILL,
    *_PAGES,
    *_LENGTHS,
    *_promised("docstring of run: Optional[Union[float, torch.Tensor]]", _F.K_SCALE_TENSOR, _F.V_SCALE_TENSOR),
    *_WINDOW_AT_RUN,
    *_KEY_LENGTHS,
    *_SPLITS,
)
"""BatchPrefillWithPagedKVCacheWrapper on FA2."""

FA3_PAGED_PREFILL: Final[Rules] = (
    *_without(PAGED_PREFILL, _OF_K_AND_V),
    *_refused("csrc/batch_prefill_sm90.cu: strides of K and V are checked to be equal", *_OF_K_AND_V),
)
"""The same on FA3."""

RAGGED_PREFILL: Final[Rules] = (*_PREFILL, *_unsaid(_F.K_SCALE_TENSOR, _F.V_SCALE_TENSOR))
"""BatchPrefillWithRaggedKVCacheWrapper on FA3."""

FA2_RAGGED_PREFILL: Final[Rules] = (*RAGGED_PREFILL, *_SPLITS)
"""The same on FA2."""

_INT32 = "docstring of plan: dtype torch.int32; csrc/batch_decode.cu: CHECK_INPUT_TYPE"
BATCH_DECODE: Final[Rules] = (
    *_refused(_INT32, _F.PAGE_IDS_INT64),
    *_LENGTHS,
    *_unsaid(_F.PAGE_IDS_GAPS, _F.KEY_STARTS_GAPS, _F.QUERY_ELEMENTS_APART, _F.K_SCALE_TENSOR, _F.V_SCALE_TENSOR),
    *_refused("csrc/batch_decode.cu: strides of K and V are checked to be equal", *_OF_K_AND_V),
    *_OUTPUTS,
    *_RETURNED,
    *_SCALES_LEFT_OUT,
    *_PLANNED,
    *_WINDOW_AT_RUN,
    *_KEY_LENGTHS,
    # fixed_split_size is "only supported by tensor core decode" (docstring of plan).
    *_promised("docstring of plan: disable_split_kv", _F.SPLIT_DISABLED),
    *_PDL,
)
"""BatchDecodeWithPagedKVCacheWrapper on CUDA cores."""

_OUT_AND_SINKS = (_F.OUT_GAPS, _F.OUT_HEADS_FIRST, _F.SINKS_16_BITS)
_TENSOR_OR_NUMBER = "docstring: Union[float, torch.Tensor]"
XQA: Final[Rules] = (
    *_unsaid(
        _F.TABLE_INT64,
        _F.LENGTHS_GAPS,
        _F.QUERY_STARTS_INT64,
        *_OUT_AND_SINKS,
    ),
    *_STRIDES,
    *_promised('docstring: "if not provided, will be allocated with query.dtype"', _F.OUT_RETURNED),
    *_promised(_TENSOR_OR_NUMBER, _F.SCALE_TENSOR, _F.V_SCALE_TENSOR),
    *_promised("signature: bmm2_scale = 1.0", _F.V_SCALE_DEFAULT),
    *_promised('docstring: "Defaults to -1"', _F.WINDOW_DEFAULT),
    *_promised("docstring: enable_pdl", _F.DEPENDENT_LAUNCH, _F.NO_DEPENDENT_LAUNCH),
)
"""xqa_batch_decode_with_kv_cache."""

FMHA_V2: Final[Rules] = (
    *_STARTS,
    *_LENGTHS,
    *_STRIDES,
    *_unsaid(*_OUT_AND_SINKS),
    *_promised('docstring: "If not provided, will be allocated with out_dtype"', _F.OUT_RETURNED),
    *_promised('docstring: "Defaults to -1"', _F.WINDOW_DEFAULT),
)
"""trtllm_fmha_v2_prefill on packed keys and values."""

FMHA_V2_PAGED: Final[Rules] = (
    *_without(FMHA_V2, _OF_K_AND_V),
    *_refused("csrc/fmha_v2_run.cu: block_tables must be int32", _F.TABLE_INT64),
)
"""The same on a pool of pages."""

MLA: Final[Rules] = (
    *_STARTS,
    *_PAGES,
    *_LENGTHS,
    *_unsaid(_F.QUERY_ELEMENTS_APART),
    *_OUTPUTS,
    *_promised("docstring of run: out and lse are optional", _F.OUT_RETURNED, _F.LSE_RETURNED),
)
"""BatchMLAPagedAttentionWrapper."""
