"""The problem that an output answers: what its requests attended to, packed."""

import torch

from attnfuzz.harness.judge.real_rows import RealRows
from attnfuzz.kernels.backend import Output
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.problem import Problem


def packed_problem(output: Output, rows: RealRows, geometry: Geometry) -> Problem:
    """The attention problem of an output's real rows, with the scales and sinks that its backend was asked for."""
    attended = output.attended
    _, heads, dim = output.out.shape
    if not attended:
        nothing = output.out.new_empty((0, heads, 1))
        query, key, value = nothing, nothing[:, : geometry.kv_heads], output.out.new_empty((0, geometry.kv_heads, dim))
    elif len(attended) == 1:
        query, key, value = attended[0].query, attended[0].key, attended[0].value
    else:
        query = torch.cat([entry.query for entry in attended])
        key = torch.cat([entry.key for entry in attended])
        value = torch.cat([entry.value for entry in attended])
    return Problem(
        query,
        key,
        value,
        rows.q_lens,
        rows.kv_lens,
        output.bmm1_scale,
        output.bmm2_scale,
        window_left=geometry.window_left,
        sinks=output.sinks,
        soft_cap=geometry.soft_cap,
    )
