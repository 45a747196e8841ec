"""What a call of FlashInfer gives back: the form of the tensors that the function would allocate itself."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch


class TensorForm(NamedTuple):
    """Of a tensor that is still to be made."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def missing_results(function: str, arguments: Mapping[str, Any]) -> dict[str, TensorForm]:
    """Which of `out` and `lse` the caller leaves to the function: neither of one that only writes in place.

    FlashInfer 0.6.3: decode.py:2345 and prefill.py:3707 (paged: the query's dtype unless out_dtype says otherwise),
    prefill.py:3486 (packed keys: the query's dtype, the values' head dim; LSE float32 per token and head), mla.py:652
    (bfloat16, kv_lora_rank); 0.7.2: prefill.py:6251 (packed keys: bfloat16 for float8 queries) and 7752 (fmha_v2).
    """
    dim_of_values = _DIM_OF_VALUES.get(function)
    if dim_of_values is None:
        return {}
    query, dim = _query(arguments), dim_of_values(arguments)
    forms = {"out": TensorForm((*query.shape[:-1], dim), _out_dtype(function, arguments))}
    if arguments.get("return_lse"):
        forms["lse"] = TensorForm(
            (query.numel() // (query.shape[-2] * query.shape[-1]), query.shape[-2]), torch.float32
        )
    return {name: form for name, form in forms.items() if arguments.get(name) is None}


def _out_dtype(function: str, arguments: Mapping[str, Any]) -> torch.dtype:
    query = _query(arguments)
    named = arguments.get("out_dtype")
    if isinstance(named, torch.dtype):
        return named
    if function == "trtllm_batch_decode_with_kv_cache_mla":
        return torch.bfloat16
    packed = function == "trtllm_ragged_attention_deepseek"
    return torch.bfloat16 if packed and query.dtype.itemsize == 1 else query.dtype


def _query(arguments: Mapping[str, Any]) -> torch.Tensor:
    """By itself, or the first of what fmha_v2 takes in one argument."""
    query: torch.Tensor = arguments["query"] if "query" in arguments else arguments["qkv"][0]
    return query


def _paged(arguments: Mapping[str, Any]) -> int:
    """K and V as a pair, or one behind the other in one tensor."""
    return _last_dim(arguments["kv_cache"])


def _last_dim(cache: torch.Tensor | Sequence[torch.Tensor]) -> int:
    return int((cache if isinstance(cache, torch.Tensor) else cache[-1]).shape[-1])


_DIM_OF_VALUES: Final[Mapping[str, Callable[[Mapping[str, Any]], int]]] = {
    "trtllm_batch_decode_with_kv_cache": _paged,
    "trtllm_batch_context_with_kv_cache": _paged,
    "trtllm_fmha_v2_prefill": lambda arguments: _last_dim(arguments["qkv"][-1]),
    "trtllm_ragged_attention_deepseek": lambda arguments: int(arguments["value"].shape[-1]),
    "trtllm_batch_decode_with_kv_cache_mla": lambda arguments: int(arguments["kv_lora_rank"]),
}
