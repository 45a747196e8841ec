"""onnxruntime on the CPU: Microsoft's GroupQueryAttention, and ONNX's Attention of the opsets 23 and 24.

GroupQueryAttention appends new tokens to a cache [batch, kv_heads, length, head_dim]: to that of the earlier tokens if
inputs and outputs share a buffer, as onnxruntime-genai has it, else to a copy. One call takes a batch of decodes or of
prompts; a request with both a past and several queries is a call of its own, since the operator refuses a batch of
them. Attention takes requests that have equally many queries.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import torch
from torch.nn.utils.rnn import pad_sequence

from attnfuzz.kernels.arguments.edges import UNSAID_BUT_ZERO, UNSAID_FACTORS
from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.kernels.libraries.installed import LibraryBackend
from attnfuzz.kernels.libraries.onnx_calls import (
    MICROSOFT,
    ArrangedRun,
    OperatorRun,
    arguments_of,
    node_of,
    run_calls,
    writes,
)
from attnfuzz.kernels.libraries.requests import DenseRequest, dense_requests
from attnfuzz.kernels.libraries.torch_sdpa import visible
from attnfuzz.reference.arguments import ArgumentStanding
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.edges import Edge, EdgeRule
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import NoiseModel

POISON = float("nan")

STALE = 7.0
"""Keys and values past a request's end, which Attention multiplies by zero: an earlier request's, as it were."""

_GQA_INPUTS = (
    "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache",
    "position_ids", "attention_bias", "head_sink",
)  # fmt: skip
_ATTENTION_INPUTS = ("query", "key", "value", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
_PRESENT = ("present_key", "present_value")


def gqa_groups(requests: Sequence[DenseRequest]) -> Iterator[list[DenseRequest]]:
    """Yield the requests of each call: all decodes, all prompts without a past, and each other request."""
    decodes = [request for request in requests if request.q_len == 1]
    prompts = [request for request in requests if request.q_len > 1 and request.past == 0]
    yield from filter(None, (decodes, prompts))
    yield from ([request] for request in requests if request.q_len > 1 and request.past > 0)


def arrange_gqa(
    *,
    query: torch.Tensor,
    scale: float,
    window_left: int,
    sinks: torch.Tensor | None,
    soft_cap: float,
    shared: bool,
    **cache: Any,
) -> dict[str, Any]:
    """Arrange calls of GroupQueryAttention. With `shared`, the past and the new tokens lie in one buffer."""
    if query.shape[2] % 8:
        raise Unsupported("GroupQueryAttention takes head sizes that are multiples of 8")
    if sinks is not None and query.dtype is not torch.float32:
        raise Unsupported("GroupQueryAttention takes sinks in the dtype of the queries")
    attributes = {
        "num_heads": query.shape[1],
        "kv_num_heads": cache["k_cache"].shape[2],
        "scale": scale,
        "softcap": soft_cap,
        # The operator counts a query's own key.
        "local_window_size": window_left + 1 if window_left >= 0 else -1,
    }
    calls: list[ArrangedRun] = []
    for index, group in enumerate(gqa_groups([request for request in dense_requests(**cache) if request.q_len])):
        longest = max(request.kv_len for request in group)
        # A buffer has room for further tokens, unless it is full.
        past = -(-longest // 8) * 8 if shared else max(request.past for request in group)
        tensors = _gqa_tensors(group, query, past)
        if sinks is not None:
            tensors["head_sink"] = sinks
        if not shared:
            tensors |= _present(tensors["past_key"], longest)
        node = node_of("GroupQueryAttention", tensors, _GQA_INPUTS, ("output", *_PRESENT), attributes, domain=MICROSOFT)
        rows = tuple(request.rows for request in group)
        buffers = {"present_key": "past_key", "present_value": "past_value"} if shared else {}
        calls.append((OperatorRun(node, f".{index}", rows, heads_first=False, buffers=buffers), tensors))
    return arguments_of(calls)


def _gqa_tensors(group: Sequence[DenseRequest], query: torch.Tensor, length: int) -> dict[str, torch.Tensor]:
    """Make the inputs and the output of one call. The past has `length` tokens; elements of no request are NaN."""
    batch, longest = len(group), max(request.q_len for request in group)
    _, kv_heads, head_dim = group[0].key.shape
    new = {name: query.new_full((batch, longest, kv_heads * head_dim), POISON) for name in ("key", "value")}
    new["query"] = query.new_full((batch, longest, query[0].numel()), POISON)
    past = {name: query.new_full((batch, kv_heads, length, head_dim), POISON) for name in ("past_key", "past_value")}
    for at, request in enumerate(group):
        new["query"][at, : request.q_len] = query[request.rows].flatten(1)
        for name, tokens in (("key", request.key), ("value", request.value)):
            new[name][at, : request.q_len] = tokens[request.past :].flatten(1)
            past[f"past_{name}"][at, :, : request.past] = tokens[: request.past].transpose(0, 1)
    kv_lens = [request.kv_len for request in group]
    return {
        **new,
        **past,
        "seqlens_k": torch.tensor(kv_lens, dtype=torch.int32) - 1,
        "total_sequence_length": torch.tensor([max(kv_lens)], dtype=torch.int32),
        "output": torch.full_like(new["query"], POISON),
    }


def _present(past: torch.Tensor, length: int) -> dict[str, torch.Tensor]:
    """Allocate caches of `length` tokens for the past and the new ones."""
    batch, kv_heads, _, head_dim = past.shape
    return {name: past.new_full((batch, kv_heads, length, head_dim), POISON) for name in _PRESENT}


def arrange_past(
    *, query: torch.Tensor, scale: float, window_left: int, soft_cap: float, **cache: Any
) -> dict[str, Any]:
    """Arrange a call of Attention for each request: past and new tokens, a causal mask or, for a window, a tensor."""
    calls: list[ArrangedRun] = []
    for request in dense_requests(**cache):
        if not request.q_len:
            continue
        past = max(request.past, 0)
        key, value = (tokens.transpose(0, 1)[None] for tokens in (request.key, request.value))
        tensors = {
            "query": query[request.rows].transpose(0, 1)[None],
            "key": key[:, :, past:],
            "value": value[:, :, past:],
            "past_key": key[:, :, :past],
            "past_value": value[:, :, :past],
            "present_key": torch.full_like(key, POISON),
            "present_value": torch.full_like(value, POISON),
        }
        causal = window_left < 0 and request.past >= 0
        if not causal:
            tensors["attn_mask"] = visible(request.q_len, request.kv_len, window_left)
        attributes = {"scale": scale, "softcap": soft_cap, "is_causal": int(causal)}
        calls.append(_attention(23, len(calls), [request], tensors, attributes, outputs=("output", *_PRESENT)))
    return arguments_of(calls)


def arrange_batch(
    *, query: torch.Tensor, scale: float, window_left: int, soft_cap: float, nonpad: bool, **cache: Any
) -> dict[str, Any]:
    """Arrange a call of Attention for all requests with equally many queries, keys padded to the longest.

    With `nonpad`, lengths exclude the padding, and tensors are [batch, heads, tokens, head_dim]. Else the mask
    excludes it, and they are [batch, tokens, heads * head_dim].
    """
    q_heads, kv_heads = query.shape[1], cache["k_cache"].shape[2]
    attributes: dict[str, int | float] = {"scale": scale, "softcap": soft_cap}
    if not nonpad:
        attributes |= {"q_num_heads": q_heads, "kv_num_heads": kv_heads}
    groups: dict[int, list[DenseRequest]] = {}
    for request in dense_requests(**cache):
        groups.setdefault(request.q_len, []).append(request)
    groups.pop(0, None)
    calls: list[ArrangedRun] = []
    for q_len, group in groups.items():
        tensors = {
            "query": torch.stack([query[request.rows] for request in group]),
            "key": _padded([request.key for request in group]),
            "value": _padded([request.value for request in group]),
        }
        tensors = {name: each.transpose(1, 2) if nonpad else each.flatten(2) for name, each in tensors.items()}
        if nonpad:
            tensors["nonpad_kv_seqlen"] = torch.tensor([request.kv_len for request in group])
        if not nonpad or q_len > 1 or window_left >= 0:
            tensors["attn_mask"] = _mask(group, window_left)
        calls.append(_attention(24, len(calls), group, tensors, attributes, outputs=("output",)))
    return arguments_of(calls)


def _padded(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Pad the tokens of requests to [batch, longest, heads, head_dim]."""
    return pad_sequence(list(rows), batch_first=True, padding_value=STALE)


def _mask(group: Sequence[DenseRequest], window_left: int) -> torch.Tensor:
    """Make the mask [batch, 1, q_len, longest] of visible keys."""
    longest = max(request.kv_len for request in group)
    mask = torch.zeros(len(group), 1, group[0].q_len, longest, dtype=torch.bool)
    for at, request in enumerate(group):
        mask[at, 0, :, : request.kv_len] = visible(request.q_len, request.kv_len, window_left)
    return mask


def _attention(
    opset: int,
    index: int,
    group: Sequence[DenseRequest],
    tensors: dict[str, torch.Tensor],
    attributes: Mapping[str, int | float],
    outputs: tuple[str, ...],
) -> ArrangedRun:
    """Make a call of Attention, with room for its output."""
    query, value = tensors["query"], tensors["value"]
    heads_first = query.dim() == 4
    value_dim = value.shape[3] if heads_first else value.shape[2] // int(attributes["kv_num_heads"])
    width = value_dim if heads_first else value_dim * int(attributes["q_num_heads"])
    tensors["output"] = query.new_full((*query.shape[:-1], width), POISON)
    node = node_of("Attention", tensors, _ATTENTION_INPUTS, outputs, attributes, opset=opset)
    return OperatorRun(node, f".{index}", tuple(request.rows for request in group), heads_first, buffers={}), tensors


_FP32 = NoiseModel(
    probabilities=2.0**-24,
    logits=2.0**-20,
    accumulate=2.0**-24,
    underflow=2.0**-126,
)
"""All in fp32, and fp16 converted to it (gqa_attention_base.h, ComputeAttentionProbs; attention.cc, AttentionGemm).

MLAS adds up the products of a logit one after another, so that 256 equal ones are off by up to 2^-17, eight times the
root mean square that is stated here. It has polynomials for exp and tanh. Its exp of arguments below -88.38 is that of
-88.38 (mlas/lib/compute.cpp, LowerRangeSumExp), so that weights near zero are off by up to 2^-127.
"""

_FP16 = NoiseModel(
    probabilities=2.0**-11,
    logits=2.0**-11,
    accumulate=2.0**-24,
    tanh=2.0**-11,
    quotient=2.0**-25,
)
"""Attention of fp16: logits, also those behind the soft cap, and the normalised weights are rounded to fp16.

See attention.cc (AttentionGemm, ComputeAttentionSoftcapInplace) and attention_softmax.h. A weight near zero is off by
up to 2^-25, whatever the largest one.
"""

_ALL_MODES = Mode.of_kernels()
_POSITIVE = "onnxruntime/core/providers/cpu/llm/attention.cc: scale must be greater than 0 if specified (checked)"
_ATTENTION = Capability(
    modes=_ALL_MODES,
    layouts=(KvLayout.NHD,),
    dtypes=(DType.FLOAT32, DType.FLOAT16),
    unequal_head_dims=True,
    windows=True,
    soft_cap=True,
    empty_kv=False,
    edges=tuple(
        EdgeRule(edge, ArgumentStanding.REFUSED, _POSITIVE) for edge in (Edge.SOFTMAX_ZERO, Edge.SOFTMAX_NEGATIVE)
    ),
)
_GQA = msgspec.structs.replace(
    _ATTENTION, unequal_head_dims=False, sinks=True, kv_shorter_than_q=False, edges=UNSAID_BUT_ZERO
)
_GQA_ANY_SCALE = msgspec.structs.replace(_GQA, edges=UNSAID_FACTORS)


def _backend(
    label: str, capability: Capability, arrange: Callable[..., Any], fp16: NoiseModel, written: Sequence[str]
) -> LibraryBackend:
    return LibraryBackend(
        run_calls,
        capability,
        label=f"onnxruntime:{label}",
        extra="onnxruntime",
        packages={"onnxruntime": "1.28", "onnx": "1.19"},
        arrange=arrange,
        writes=writes("output", *written),
        noise_model=_FP32,
        noise_models={DType.FLOAT16: fp16},
    )


ONNXRUNTIME_BACKENDS = (
    _backend("gqa", _GQA, partial(arrange_gqa, shared=False), _FP32, _PRESENT),
    _backend("gqa_shared", _GQA, partial(arrange_gqa, shared=True), _FP32, ("past_key", "past_value")),
    _backend("gqa_any_scale", _GQA_ANY_SCALE, partial(arrange_gqa, shared=False), _FP32, _PRESENT),
    _backend("attention_23", _ATTENTION, arrange_past, _FP16, _PRESENT),
    _backend("attention_24", _ATTENTION, partial(arrange_batch, nonpad=False), _FP16, ()),
    _backend("attention_24_nonpad", _ATTENTION, partial(arrange_batch, nonpad=True), _FP16, ()),
)
