"""The forms of arguments as tables: the arguments that each has, and the change of a tensor, a number or an option.

Arguments are identified by the names that sessions give them, which are those of FlashInfer's arguments and of a
function backend's.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnfuzz.kernels.interface.backend import Memory
from attnfuzz.reference.arguments import TACTICS, ArgumentForm
from attnfuzz.reference.case import Case

_GAP = 16
"""Number of elements between two heads: at least 16 bytes, the alignment of vector loads in kernels."""

_FAR = (1 << 31) - 1
"""The longest window in 32 bits."""

_Strides = Callable[[Sequence[int]], list[int]]


@dataclass(frozen=True)
class PlacedForm:
    """The form of the tensors of these `names`: another dtype, other strides, or other values.

    With `as_queries`, the dtype is that of the case's queries.
    """

    names: frozenset[str]
    dtype: torch.dtype | None = None
    strides: _Strides | None = None
    values: Callable[[torch.Tensor], torch.Tensor] | None = None
    as_queries: bool = False

    def of(self, case: Case) -> "PlacedForm":
        """Return the form in this case, with the dtype that its tensors get."""
        return replace(self, dtype=case.geometry.dtype.torch_dtype) if self.as_queries else self


def dense(shape: Sequence[int], order: Sequence[int], gaps: Mapping[int, int]) -> list[int]:
    """Return strides for axes in this order in memory, the last one adjacent, with gaps after the rows of some."""
    strides, size = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = size
        size = size * max(shape[axis], 1) + gaps.get(axis, 0)
    return strides


def _every_other(shape: Sequence[int]) -> list[int]:
    return [2 * stride for stride in dense(shape, range(len(shape)), {})]


def head_gaps(shape: Sequence[int]) -> list[int]:
    """Return dense strides with a gap after each row of the last axis."""
    last = len(shape) - 1
    return dense(shape, range(len(shape)), {last: _GAP})


def heads_first(shape: Sequence[int]) -> list[int]:
    """Return dense strides in which the second axis is outermost in memory."""
    return dense(shape, (1, 0, *range(2, len(shape))), {})


def largest_of(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Return `count` numbers of the largest magnitude in `dtype`, of alternating signs."""
    return torch.finfo(dtype).max * (1 - 2 * (torch.arange(count) % 2)).to(dtype)


def _largest_as_nan(value: torch.Tensor) -> torch.Tensor:
    """Replace the numbers of the largest magnitude, which stand where no number may matter, by NaN."""
    return value.masked_fill(value.abs() == torch.finfo(value.dtype).max, torch.nan)


def _names(text: str) -> frozenset[str]:
    return frozenset(name for each in text.split() for name in (each, f"{each}_buf"))


_PAGE_IDS = _names("kv_indices indices")
_QUERY_STARTS = _names("qo_indptr cum_seq_lens_q cu_seq_q")
_KEY_STARTS = _names("kv_indptr cum_seq_lens_kv indptr cu_seq_k")
_LENGTHS = _names("last_page_len seq_lens kv_len_arr actual_seq_lens_kv actual_seq_lens_q")
_F = ArgumentForm

PLACED: Mapping[ArgumentForm, PlacedForm] = {
    _F.PAGE_IDS_INT64: PlacedForm(_PAGE_IDS, dtype=torch.int64),
    _F.PAGE_IDS_GAPS: PlacedForm(_PAGE_IDS, strides=_every_other),
    _F.TABLE_INT64: PlacedForm(_names("block_tables"), dtype=torch.int64),
    _F.QUERY_STARTS_INT64: PlacedForm(_QUERY_STARTS, dtype=torch.int64),
    _F.QUERY_STARTS_GAPS: PlacedForm(_QUERY_STARTS, strides=_every_other),
    _F.KEY_STARTS_GAPS: PlacedForm(_KEY_STARTS, strides=_every_other),
    _F.LENGTHS_INT64: PlacedForm(_LENGTHS, dtype=torch.int64),
    _F.LENGTHS_GAPS: PlacedForm(_LENGTHS, strides=_every_other),
    _F.QUERY_ELEMENTS_APART: PlacedForm(_names("query q_p q_d"), strides=_every_other),
    _F.KEYS_GAPS: PlacedForm(_names("k_cache key"), strides=head_gaps),
    _F.VALUES_GAPS: PlacedForm(_names("v_cache value"), strides=head_gaps),
    _F.OUT_GAPS: PlacedForm(_names("out"), strides=head_gaps),
    _F.OUT_HEADS_FIRST: PlacedForm(_names("out"), strides=heads_first),
    _F.LSE_HEADS_FIRST: PlacedForm(_names("lse"), strides=heads_first),
    # With this option, the run gets a transposed view.
    _F.LSE_LAYOUT: PlacedForm(_names("lse"), strides=heads_first),
    _F.SINKS_16_BITS: PlacedForm(_names("sinks"), dtype=torch.bfloat16),
    _F.SHARED_KEYS_GAPS: PlacedForm(_names("k_shared v_shared"), strides=head_gaps),
    _F.MASK_GAPS: PlacedForm(
        _names("attn_mask custom_mask packed_custom_mask mask block_mask_map"), strides=_every_other
    ),
    _F.SIZES_INT64: PlacedForm(_names("block_row_sz block_col_sz"), dtype=torch.int64),
    _F.OFFSETS_INT64: PlacedForm(_names("batch_offsets_q batch_offsets_o batch_offsets_stats"), dtype=torch.int64),
    _F.STATES_GAPS: PlacedForm(_names("state_out v"), strides=head_gaps),
    _F.STATE_LSES_GAPS: PlacedForm(_names("state_lse merged_lse s"), strides=_every_other),
    _F.STATE_LSES_FLOAT64: PlacedForm(_names("state_lse merged_lse s"), dtype=torch.float64),
    # The LSE of a merge in place stays in float32: 16 bits would round the result.
    _F.STATE_LSES_16_BITS: PlacedForm(_names("state_lse s"), as_queries=True),
    _F.STATES_NAN: PlacedForm(_names("state_out v"), values=_largest_as_nan),
}
"""Forms that a tensor gets when it is placed."""


@dataclass(frozen=True)
class LaunchForm:
    """The form of the arguments of these `names` at a launch.

    `change` returns all arguments of the call, or the same object if there is nothing to change.
    """

    names: frozenset[str]
    change: Callable[[dict[str, Any], str, Memory], dict[str, Any]]


def _left_out(arguments: dict[str, Any], name: str, memory: Memory) -> dict[str, Any]:
    del memory
    return {each: value for each, value in arguments.items() if each != name}


def _as_tensor(arguments: dict[str, Any], name: str, memory: Memory) -> dict[str, Any]:
    value = arguments[name]
    number = torch.tensor([1.0 if value is None else value], dtype=torch.float32)
    return {**arguments, name: memory.copy(name, number)}


def _replaced(by: float) -> Callable[[dict[str, Any], str, Memory], dict[str, Any]]:
    def change(arguments: dict[str, Any], name: str, memory: Memory) -> dict[str, Any]:
        del memory
        return {**arguments, name: by}

    return change


def _scheduled_by_lengths(arguments: dict[str, Any], name: str, memory: Memory) -> dict[str, Any]:
    del name, memory
    return {**arguments, "length_aware_schedule": True}


def _mask_to_add(arguments: dict[str, Any], name: str, memory: Memory) -> dict[str, Any]:
    """Replace a mask of bools by 0 and -inf in the dtype of the queries."""
    mask = arguments[name]
    if not isinstance(mask, torch.Tensor):
        return arguments
    added = torch.zeros(mask.shape, dtype=arguments["query"].dtype, device=mask.device)
    return {**arguments, name: memory.copy(name, added.masked_fill_(~mask, -torch.inf))}


_K_SCALE, _V_SCALE = _names("k_scale"), _names("v_scale bmm2_scale")

AT_LAUNCH: Mapping[ArgumentForm, LaunchForm] = {
    _F.SCALE_DEFAULT: LaunchForm(_names("sm_scale scale sm_scale_p"), _left_out),
    _F.SCALE_TENSOR: LaunchForm(_names("sm_scale bmm1_scale scale sm_scale_p"), _as_tensor),
    _F.K_SCALE_DEFAULT: LaunchForm(_K_SCALE, _left_out),
    _F.K_SCALE_TENSOR: LaunchForm(_K_SCALE, _as_tensor),
    _F.V_SCALE_DEFAULT: LaunchForm(_V_SCALE, _left_out),
    _F.V_SCALE_TENSOR: LaunchForm(_V_SCALE, _as_tensor),
    _F.WINDOW_DEFAULT: LaunchForm(_names("window_left window_left_p"), _left_out),
    _F.SOFT_CAP_DEFAULT: LaunchForm(_names("logits_soft_cap soft_cap"), _left_out),
    _F.WINDOW_FAR: LaunchForm(_names("window_left window_left_p"), _replaced(_FAR)),
    _F.SOFT_CAP_NEGATIVE: LaunchForm(_names("logits_soft_cap soft_cap"), _replaced(-1.0)),
    _F.MASK_ADDED: LaunchForm(_names("attn_mask"), _mask_to_add),
    # An option of the calls that have this argument: those of trtllm_batch_decode_with_kv_cache.
    _F.LENGTH_AWARE: LaunchForm(_names("q_len_per_req"), _scheduled_by_lengths),
}
"""Forms of numbers."""

RETURNED: Mapping[ArgumentForm, str] = {_F.OUT_RETURNED: "out", _F.LSE_RETURNED: "lse"}
"""The output that a call returns instead of writing it."""

OPTIONS: Mapping[ArgumentForm, tuple[str, Any]] = {
    _F.DEPENDENT_LAUNCH: ("enable_pdl", True),
    _F.NO_DEPENDENT_LAUNCH: ("enable_pdl", False),
    **{form: ("tactic", tactic) for tactic, form in enumerate(TACTICS)},
}
"""Options of a launch that computes results."""


def reaches(form: ArgumentForm, names: Collection[str]) -> bool:
    """Return whether the form changes an argument among `names`, some of which are options of FlashInfer's sessions."""
    how = PLACED.get(form) or AT_LAUNCH.get(form)
    one = RETURNED.get(form) or OPTIONS.get(form, ("",))[0]
    return not (how.names if how else {one}).isdisjoint(names)
