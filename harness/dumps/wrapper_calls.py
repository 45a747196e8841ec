"""Runs of FlashInfer's wrapper objects as calls of equivalent functions without a plan.

A wrapper is planned for the pages of its requests, then run on queries and a cache. The functions for TRT-LLM's kernels
take both at once: lists of pages become rows of a page table, and the tokens on the last page make a length.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import torch

from attnfuzz.harness.dumps.recorded import DumpError, ForeignTensor, Recorded, RecordedCall


@dataclass(frozen=True)
class _Wrapper:
    """A wrapper class: the function equivalent to its run, and its plan's names of the page lists."""

    function: str
    prefix: str
    head_dim: str


_WRAPPERS: Final = {
    "BatchDecodeWithPagedKVCacheWrapper": _Wrapper("trtllm_batch_decode_with_kv_cache", "", "head_dim"),
    "BatchPrefillWithPagedKVCacheWrapper": _Wrapper("trtllm_batch_context_with_kv_cache", "paged_kv_", "head_dim_qk"),
}

_LISTS: Final = ("indptr", "indices", "last_page_len")
_CARRIED: Final = frozenset({"q", "paged_kv_cache", "out", "lse", "return_lse", "sinks", "window_left", "sm_scale"}) | {
    *("q_scale", "k_scale", "v_scale", "q_len_per_req", "causal", "qo_indptr"),
    *(wrapper.prefix + name for wrapper in _WRAPPERS.values() for name in _LISTS),
}
"""Arguments of plan and run that the function takes."""

_IMMATERIAL: Final = frozenset(
    {"num_qo_heads", "num_kv_heads", "head_dim", "head_dim_qk", "head_dim_vo", "page_size"}
) | {
    # Redundant with the tensors or the lists.
    *("q_data_type", "kv_data_type", "o_data_type", "data_type", "seq_lens", "seq_lens_q", "block_tables"),
    *("max_token_per_sequence", "max_sequence_kv", "uniform_q_len"),
    # Choices of the implementation.
    *("non_blocking", "fixed_split_size", "disable_split_kv", "use_fp16_qk_reduction", "enable_pdl"),
    # Parameters of position encodings, which are refused.
    *("rope_scale", "rope_theta"),
}
_NEUTRAL: Final[Mapping[str, Recorded]] = {
    "pos_encoding_mode": "NONE",
    "logits_soft_cap": 0.0,
    "window_right": 0,
    "token_pos_in_items_len": 0,
}
"""Required values of options that no function has."""


def function_of(call: RecordedCall) -> str:
    """Return the function equivalent to a call: its own, or one for the run of a wrapper."""
    return _WRAPPERS[class_of(call)].function if _is_run(call) else call.function


def as_function(calls: Sequence[RecordedCall], call: RecordedCall) -> RecordedCall:
    """Turn `call` into one of `function_of(call)`; `calls` are the dump's. Calls other than runs are unchanged.

    Raises DumpError for a run whose object's __init__ or plan was not dumped, or which no function can express.
    """
    if not _is_run(call):
        return call
    begun, plan = (last_call(calls, call, name) for name in ("__init__", "plan"))
    for each in (plan, call):
        _check_options(each)
    known = {**plan.arguments, **{name: value for name, value in call.arguments.items() if value is not None}}
    wrapper = _WRAPPERS[class_of(call)]
    pages = _Pages.of(plan, known, wrapper)
    arguments: dict[str, Recorded] = {
        "query": known["q"],
        "kv_cache": known["paged_kv_cache"],
        "workspace_buffer": begun.arguments["float_workspace_buffer"],
        "kv_layout": begun.arguments.get("kv_layout", "NHD"),
        "window_left": known.get("window_left", -1),
        **_scales(call, known, wrapper),
        **{name: known[name] for name in ("out", "lse", "return_lse", "sinks") if name in known},
        **(pages.context(plan, known) if "qo_indptr" in known else pages.decode(known)),
    }
    note = f"That function replaces the run of a {class_of(call)}, with the pages planned in {plan.folder.name}."
    return replace(call, function=wrapper.function, arguments=arguments, self_id=None, lost=(note, *call.lost))


def _is_run(call: RecordedCall) -> bool:
    return call.self_id is not None and call.function.endswith(".run") and class_of(call) in _WRAPPERS


def class_of(call: RecordedCall) -> str:
    """Return the name of the class of a recorded method."""
    return call.function.partition(".")[0]


def last_call(calls: Sequence[RecordedCall], call: RecordedCall, method: str) -> RecordedCall:
    """Return the last call of a method of the same object before this one."""
    name = f"{class_of(call)}.{method}"
    place = next(index for index, each in enumerate(calls) if each is call)
    for each in reversed(calls[:place]):
        if (each.process, each.self_id, each.function) == (call.process, call.self_id, name):
            return each
    raise DumpError(f"{call.folder}: the {name} of its object is not in the dump; dump it too, or import another call")


def _check_options(call: RecordedCall) -> None:
    for name, value in call.arguments.items():
        neutral = not isinstance(value, ForeignTensor) and (value is None or value == _NEUTRAL.get(name))
        if name not in _CARRIED | _IMMATERIAL and not neutral:
            raise DumpError(
                f"{call.folder}: {call.function} has the argument {name}, which no function without a plan takes; "
                "import another call"
            )


def _scales(call: RecordedCall, known: Mapping[str, Recorded], wrapper: _Wrapper) -> dict[str, Recorded]:
    """Combine scales as run does: those of queries and keys into the softmax scale, that of values for the output."""
    head_dim = known.get(wrapper.head_dim)
    if not isinstance(head_dim, int) or head_dim < 1:
        raise DumpError(f"{call.folder}: its object was planned without {wrapper.head_dim}; import another call")
    factors = {"sm_scale": 1 / math.sqrt(head_dim), "q_scale": 1.0, "k_scale": 1.0, "v_scale": 1.0}
    for name in factors:
        value = known.get(name)
        if value is not None:
            if not isinstance(value, int | float):
                raise DumpError(f"{call.folder}: {name} is not a plain number, as required; import another call")
            factors[name] = value
    return {
        "bmm1_scale": factors["sm_scale"] * factors["q_scale"] * factors["k_scale"],
        "bmm2_scale": factors["v_scale"],
    }


@dataclass(frozen=True)
class _Pages:
    """A plan's requests: a page table [requests, most pages], and their numbers of keys."""

    table: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(cls, plan: RecordedCall, known: Mapping[str, Recorded], wrapper: _Wrapper) -> "_Pages":
        first, ids, last = (_integers(plan, known, wrapper.prefix + name) for name in _LISTS)
        page_size = known.get("page_size")
        counts = [end - begin for begin, end in pairwise(first)]
        if not isinstance(page_size, int) or len(last) != len(counts):
            raise DumpError(f"{plan.folder}: its lists do not match its page size; import another call")
        if first[:1] != [0] or min(counts, default=0) < 0 or first[-1] > len(ids):
            raise DumpError(
                f"{plan.folder}: {wrapper.prefix}indptr does not cut {len(ids)} page ids into lists, so that there is "
                "no page table; import another call"
            )
        table = torch.zeros(len(counts), max(counts, default=0), dtype=torch.int32)
        for row, (begin, end) in enumerate(pairwise(first)):
            table[row, : end - begin] = torch.tensor(ids[begin:end], dtype=torch.int32)
        # flashinfer/page.cuh, paged_kv_t::get_length.
        lengths = [(count - 1) * page_size + rest if count else 0 for count, rest in zip(counts, last, strict=True)]
        return cls(table, torch.tensor(lengths, dtype=torch.int32))

    def decode(self, known: Mapping[str, Recorded]) -> dict[str, Recorded]:
        """Return arguments of trtllm_batch_decode_with_kv_cache."""
        return {
            "block_tables": ForeignTensor.of(self.table),
            "seq_lens": ForeignTensor.of(self.lengths),
            "max_seq_len": self._longest,
            "q_len_per_req": known.get("q_len_per_req", 1),
        }

    def context(self, plan: RecordedCall, known: Mapping[str, Recorded]) -> dict[str, Recorded]:
        """Return arguments of trtllm_batch_context_with_kv_cache."""
        first = _integers(plan, known, "qo_indptr")
        if not known.get("causal", False):
            raise DumpError(f"{plan.folder} is not causal, but the function is; import another call")
        return {
            "block_tables": ForeignTensor.of(self.table),
            "seq_lens": ForeignTensor.of(self.lengths),
            "max_q_len": max((end - begin for begin, end in pairwise(first)), default=0),
            "max_kv_len": self._longest,
            "batch_size": len(self.lengths),
            "cum_seq_lens_q": ForeignTensor.of(torch.tensor(first, dtype=torch.int32)),
            "cum_seq_lens_kv": ForeignTensor.of(torch.tensor([0, *self.lengths.cumsum(0).tolist()], dtype=torch.int32)),
        }

    @property
    def _longest(self) -> int:
        return max(self.lengths.tolist(), default=0)


def _integers(plan: RecordedCall, known: Mapping[str, Recorded], name: str) -> list[int]:
    value = known.get(name)
    if not isinstance(value, ForeignTensor) or value.dtype not in (torch.int32, torch.int64) or len(value.shape) != 1:
        raise DumpError(f"{plan.folder}: {name} is not a list of integers; import another call")
    return [int(number) for number in value.read().tolist()]
