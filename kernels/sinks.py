"""Attention sinks: one extra logit per head in the softmax's denominator."""

import torch

from attnfuzz.kernels.backend import Bench
from attnfuzz.reference.case import Case, ValueFamily
from attnfuzz.reference.values import Operand, draw

_STREAM = 1_000_003
"""Away from the streams of queries: there are not that many slots."""


def place_sinks(case: Case, bench: Bench) -> torch.Tensor | None:
    """Sinks float32 [q_heads] in guarded memory, None where the geometry has none."""
    if not case.geometry.sinks:
        return None
    drawn = draw(ValueFamily.NORMAL, Operand.QUERY, (case.geometry.q_heads, 1, 1), seed=case.seed, stream=_STREAM)
    return bench.memory.copy("sinks", drawn.reshape(-1).to(torch.float32))
