"""Query tensors as a model hands them over."""

import torch

from attnfuzz.kernels.backend import Bench
from attnfuzz.kernels.lengths import running_sum
from attnfuzz.reference.case import Case, QueryView, Step
from attnfuzz.reference.values import Role, draw

HEAD_GAP = 8
"""Elements between two heads in QueryView.HEAD_GAP."""


def draw_queries(case: Case, index: int, rows: int, head_dim: int) -> torch.Tensor:
    """Queries of step `index` [rows, q_heads, head_dim] in the geometry's dtype, padded rows as finite as others."""
    geometry = case.geometry
    shape = (rows, geometry.q_heads, head_dim)
    drawn = draw(case.values, Role.QUERY, shape, seed=case.seed, stream=index)
    return drawn.to(geometry.dtype.torch_dtype)


def place_queries(case: Case, bench: Bench, queries: torch.Tensor) -> torch.Tensor:
    """Queries [rows, q_heads, head_dim] in guarded memory, with the strides that the case's view asks for."""
    _, heads, head_dim = queries.shape
    match case.views.query:
        case QueryView.CONTIGUOUS:
            stride = None
        case QueryView.FUSED_QKV:
            row = heads * head_dim + case.geometry.kv_heads * (head_dim + case.geometry.head_dim_vo)
            stride = (row, head_dim, 1)
        case QueryView.HEAD_GAP:
            stride = (heads * (head_dim + HEAD_GAP), head_dim + HEAD_GAP, 1)
    return bench.memory.copy("query", queries, stride=stride)


def packed_rows(step: Step) -> list[int]:
    """First query row of each request where requests follow each other without gaps."""
    return running_sum(request.q_len for request in step.requests)[:-1]
