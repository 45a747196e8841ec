"""Runs of FlashInfer's planned wrappers: which keys the arguments of plan and run name together."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from attnfuzz.harness.calls.object_calls import needs
from attnfuzz.harness.calls.planned import PlannedPart
from attnfuzz.harness.dumps.planned_blocks import PlannedBlocks
from attnfuzz.harness.dumps.planned_function import PackedFunction, PlannedFunction
from attnfuzz.harness.dumps.planned_halves import PlannedHalf, PlannedHalves, PlannedPrefill
from attnfuzz.harness.dumps.planned_heads import PlannedHeads
from attnfuzz.harness.dumps.planned_latents import PlannedLatents
from attnfuzz.harness.dumps.planned_lengths import PlannedLengths
from attnfuzz.harness.dumps.planned_levels import PlannedLevels
from attnfuzz.harness.dumps.planned_prefix import PlannedPrefix
from attnfuzz.harness.dumps.planned_run import PlannedRun
from attnfuzz.kernels.interface.library_call import PLANS
from attnfuzz.reference.calls import REPLAY, Argument, Call, CallCase, View

_DECODE_LISTS: Final = ("indptr", "", "indices", "last_page_len")
_PREFILL: Final = PlannedRun("paged_kv_indptr", "qo_indptr", "paged_kv_indices", "paged_kv_last_page_len", causal=False)
_DECODE: Final = PlannedRun(*_DECODE_LISTS)
_LISTS: Final = ("kv_indptr", "qo_indptr", "kv_indices", "last_page_len")

_INEXPRESSIBLE: Final = ("use_fp16_qk_reduction", "prefix_len_ptr", "token_pos_in_items_ptr", "max_item_len_ptr")
"""Options of any plan that an answer can't express."""

PLANNED_RUNS: Final[Mapping[str, PlannedRun]] = {
    "BatchPrefillWithPagedKVCacheWrapper.run": _PREFILL,
    "BatchAttentionWithAttentionSinkWrapper.run": _PREFILL,
    "BatchDecodeWithPagedKVCacheWrapper.run": _DECODE,
    "CUDAGraphBatchDecodeWithPagedKVCacheWrapper.run": _DECODE,
    "BatchPrefillWithRaggedKVCacheWrapper.run": PlannedRun("kv_indptr", "qo_indptr", causal=False),
    "BlockSparseAttentionWrapper.run": PlannedBlocks(),
    "VariableBlockSparseAttentionWrapper.run": PlannedHeads(),
    "BatchAttention.run": PlannedLengths(),
    "BatchMLAPagedAttentionWrapper.run": PlannedLatents(),
    "MultiLevelCascadeAttentionWrapper.run": PlannedLevels(),
    "BatchDecodeWithSharedPrefixPagedKVCacheWrapper.forward": PlannedPrefix(
        "unique_kv_indptr", "", "unique_kv_indices", "unique_kv_last_page_len"
    ),
    "BatchPrefillWithSharedPrefixPagedKVCacheWrapper.forward": PlannedPrefix(
        "paged_kv_indptr", "qo_indptr", "paged_kv_indices", "paged_kv_last_page_len", causal=False
    ),
    "PODWithPagedKVCacheWrapper.run": PlannedHalves(
        prefill=PlannedPrefill(), decode=PlannedHalf(*_DECODE_LISTS, suffix="_d")
    ),
    "BatchPODWithPagedKVCacheWrapper.run": PlannedHalves(
        prefill=PlannedHalf(*_LISTS, causal=False, suffix="_p"), decode=PlannedHalf(*_LISTS, causal=False, suffix="_d")
    ),
}


def planned_parts(case: CallCase, index: int) -> tuple[PlannedPart, ...]:
    """Return the parts of a planned run with all that each reads: arguments of the plan and the constructor as well.

    A replay is the run that its graph has captured. Names and scales are those of the functions without a plan. () for
    any other call. Raises ValueError for a run that an answer can't express.
    """
    call = case.calls[index]
    if call.op == REPLAY:
        captured = [each for each in case.calls[:index] if each.graph == call.graph]
        if len(captured) != 1:
            raise ValueError("its graph has captured several calls")
        call = replace(captured[0], writes=call.writes)
    if call.op not in PLANNED_RUNS:
        return ()
    if not call.on:
        return _as_function(case, index, call)
    before = [case.calls[n] for n in sorted(needs(case.calls, index))]
    plans = [each for each in before if each.op.rpartition(".")[2] in PLANS]
    makers = [each for each in before if each.makes and not each.on]
    if not plans or not makers:
        raise ValueError("its object was not planned")
    known = makers[0].arguments | plans[-1].arguments
    known |= {name: value for name, value in call.arguments.items() if value is not None and name not in call.held}
    return tuple(
        PlannedPart(_reading(case, index, replace(call, arguments=_arguments(part, part.own(known)))), part)
        for part in PLANNED_RUNS[call.op].parts(known)
    )


def _as_function(case: CallCase, index: int, call: Call) -> tuple[PlannedPart, ...]:
    """Return the only part of a run that takes the arguments of its plan as well, under the names of a prefill."""
    part: PlannedRun = PackedFunction() if "k" in call.arguments else PlannedFunction()
    if "q_nope" in call.arguments:
        part = PlannedLatents()
    arguments = _arguments(part, part.own(call.arguments))
    return (PlannedPart(_reading(case, index, replace(call, arguments=arguments)), part),)


def _reading(case: CallCase, index: int, call: Call) -> CallCase:
    return replace(case, calls=(*case.calls[:index], call, *case.calls[index + 1 :]))


def _arguments(part: PlannedRun, known: Mapping[str, Argument]) -> dict[str, Argument]:
    refused = [name for name in (*part.refused, *_INEXPRESSIBLE) if known.get(name)]
    if refused:
        raise ValueError(f"its {refused[0]} can't be part of an answer")
    if known.get("pos_encoding_mode") not in (None, "NONE"):
        raise ValueError("it encodes positions itself, which can't be part of an answer")
    arguments = part.canonical(known)
    if known.get("kv_layout") == "HND":
        arguments |= {name: _tokens_first(arguments[name]) for name in ("key", "value") if name in arguments}
    return arguments | _scales(known)


def _tokens_first(value: Argument) -> Argument:
    assert isinstance(value, View)
    (heads, tokens, dim), (by_head, by_token, by_element) = value.shape, value.stride
    return replace(value, shape=(tokens, heads, dim), stride=(by_token, by_head, by_element))


def _scales(known: Mapping[str, Argument]) -> dict[str, float]:
    query = known.get("q")
    # A plan of MLA always has a scale: the query's size says nothing of the heads that latents stand for.
    default = query.shape[-1] ** -0.5 if isinstance(query, View) else 1.0
    factors = {"sm_scale": default, "q_scale": 1.0, "k_scale": 1.0, "v_scale": 1.0}
    for name in factors:
        value = known.get(name)
        if value is not None:
            if not isinstance(value, int | float):
                raise ValueError(f"its {name} is no number")
            factors[name] = value
    return {
        "bmm1_scale": factors["sm_scale"] * factors["q_scale"] * factors["k_scale"],
        "bmm2_scale": factors["v_scale"],
    }
