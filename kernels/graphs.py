"""Graphs: captured once per mode and bucket, replayed on other metadata."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from attnfuzz.kernels.backend import Bench, Graph
from attnfuzz.kernels.queries import place_queries
from attnfuzz.kernels.results import Results
from attnfuzz.kernels.transfers import write
from attnfuzz.reference.case import Case, Launch, Step

Metadata = TypeVar("Metadata")


@dataclass(frozen=True)
class Captured(Generic[Metadata]):
    """A graph and the static tensors that it reads and writes; query is [rows, q_heads, head_dim_qk]."""

    graph: Graph
    plan: Metadata
    query: torch.Tensor
    results: Results

    def replay(self, bench: Bench, queries: torch.Tensor) -> None:
        """Run the graph on `queries` [rows, q_heads, head_dim_qk] and what the plan's tensors hold now."""
        write(self.query, queries)
        self.results.renew(bench)
        self.graph.replay()


def capture(
    case: Case, bench: Bench, step: Step, plan: Metadata, launch: Callable[[torch.Tensor, Results], None]
) -> Captured[Metadata]:
    """Record what `launch` launches on static queries and results of the step's bucket."""
    geometry = case.geometry
    shape = (step.padded_tokens, geometry.q_heads, geometry.head_dim_qk)
    query = place_queries(case, bench, torch.zeros(shape, dtype=geometry.dtype.torch_dtype))
    results = Results.place(case, bench, step.padded_tokens, geometry.head_dim_vo)
    with bench.launcher.capture() as graph:
        launch(query, results)
    return Captured(graph, plan, query, results)


def largest_bucket(case: Case) -> int:
    """Rows of the largest batch that the case captures: what static metadata is allocated for."""
    return max(step.padded_batch for step in case.steps if step.launch is Launch.CAPTURE)
