"""A model's inputs besides the KV cache: queries, attention sinks, and the factors of both products."""

import math
from collections.abc import Sequence
from typing import TypedDict

import torch

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.planning.lengths import running_sum
from attnfuzz.kernels.planning.slot_tokens import stream_of
from attnfuzz.reference.case import Case, Granularity, Launch, QueryView, Step
from attnfuzz.reference.chance import TokenRun
from attnfuzz.reference.magnitudes import at_magnitude
from attnfuzz.reference.values import Operand, draw_runs, draw_sinks

HEAD_GAP = 8
"""Number of elements between two heads in QueryView.HEAD_GAP."""


def draw_queries(
    case: Case, index: int, rows: int, head_dim: int, first_rows: Sequence[int] | None = None
) -> torch.Tensor:
    """Return queries of step `index` [rows, q_heads, head_dim] in the geometry's dtype. Padded rows are finite too.

    The queries of each request begin at one of `first_rows`, in order; by default, requests follow each other. Earlier
    captures do not change the numbers.
    """
    step, geometry = case.steps[index], case.geometry
    part = sum(earlier.launch is not Launch.CAPTURE for earlier in case.steps[:index])
    runs = [TokenRun(stream_of(part, request.slot), request.q_len) for request in step.requests]
    runs.append(TokenRun(stream_of(part), rows - step.tokens))
    packed = draw_runs(case.values, Operand.QUERY, runs, geometry.q_heads, head_dim, seed=case.seed)
    packed = at_magnitude(packed, case.magnitude, Operand.QUERY, geometry.dtype)
    packed = packed.to(geometry.dtype.torch_dtype)
    if first_rows is None:
        return packed
    requests = zip(first_rows, step.requests, strict=True)
    order = [row for first, request in requests for row in range(first, first + request.q_len)]
    order += sorted(set(range(rows)).difference(order))
    queries = torch.empty_like(packed)
    queries[order] = packed
    return queries


def query_strides(case: Case, heads: int, head_dim: int) -> tuple[int, int, int] | None:
    """Return the strides of [rows, heads, head_dim] in the case's view, or None if dense."""
    match case.views.query:
        case QueryView.CONTIGUOUS:
            return None
        case QueryView.FUSED_QKV:
            row = heads * head_dim + case.geometry.kv_heads * (head_dim + case.geometry.head_dim_vo)
            return row, head_dim, 1
        case QueryView.HEAD_GAP:
            return heads * (head_dim + HEAD_GAP), head_dim + HEAD_GAP, 1


def place_queries(case: Case, bench: Bench, queries: torch.Tensor) -> torch.Tensor:
    """Return queries [rows, q_heads, head_dim] in guarded memory, with the strides of the case's view."""
    _, heads, head_dim = queries.shape
    return bench.memory.copy("query", queries, stride=query_strides(case, heads, head_dim))


def packed_rows(step: Step) -> list[int]:
    """Return the first query row of each request if requests follow each other without gaps."""
    return running_sum(request.q_len for request in step.requests)[:-1]


_SINK_STREAM = 1_000_003
"""Differs from the streams of queries, because there are fewer sequences."""


def place_sinks(case: Case, bench: Bench, dtype: torch.dtype = torch.float32) -> torch.Tensor | None:
    """Return sinks [q_heads], an extra logit per head in the denominator, or None if the geometry has none."""
    if not case.geometry.sinks:
        return None
    drawn = draw_sinks(case.values, case.geometry.q_heads, seed=case.seed, stream=_SINK_STREAM)
    return bench.memory.copy("sinks", drawn.to(dtype))


class BmmScales(TypedDict):
    """The factors of both products, by FlashInfer's names.

    `bmm1_scale` multiplies the logits, 1 / sqrt(head dim) included, and `bmm2_scale` the output.
    """

    bmm1_scale: float
    bmm2_scale: float


def key_dim(case: Case) -> int:
    """Return the head dim of the per-head keys, which determines the softmax scale. Latents represent such keys."""
    latent = case.geometry.latent
    return latent.nope + latent.rope if latent else case.geometry.head_dim_qk


def softmax_scale(case: Case) -> float:
    """Return the factor of the logits: 1 / sqrt(head dim of keys), times the case's factor."""
    return case.scales.softmax / math.sqrt(key_dim(case))


def cached_scales(case: Case) -> BmmScales:
    """Return the factors of attention to a KV cache that is dequantised by the case's scales of K and V.

    Tensors of scales include those of K and V, except for scales of blocks.
    """
    key, value = factors_of_cache(case)
    return BmmScales(bmm1_scale=softmax_scale(case) * key, bmm2_scale=value)


def factors_of_cache(case: Case) -> tuple[float, float]:
    """Return the factors of K and V that no tensor of scales includes."""
    included = case.scales.granularity in (Granularity.HEAD, Granularity.TOKEN_HEAD)
    return (1.0, 1.0) if included else (case.scales.k, case.scales.v)
