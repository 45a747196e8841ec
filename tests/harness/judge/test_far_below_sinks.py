"""T3 on rows whose keys are all far below a sink: nothing cancels the roundings of large logits."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.kernels.backend import Attended, Output
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.noise import NoiseModel

ROWS, HEADS, DIM = 64, 8, 64

CALIBRATED = NoiseModel(probabilities=2.0**-24, logits=2.0**-25, accumulate=2.0**-24, exponential=2.0**-25)


def one_key_below_a_sink(scale: float, off: float = 1.0) -> Output:
    """A kernel in fp32 that multiplies all logits, of -60 or so, by scale * log2 e, and its output by `off`."""
    generator = torch.Generator().manual_seed(3)
    sinks, key = torch.linspace(-1.0, 1.5, HEADS), torch.ones(1, HEADS, DIM)
    query = -60 / (scale * DIM) * (1 + 0.1 * torch.rand(ROWS, HEADS, 1, generator=generator)).repeat(1, 1, DIM)
    # Elements that cancel: |q| |k| is four times the logit, as it is in a probe.
    query += 4 * 60 / (scale * DIM) * torch.tensor([1.0, -1.0]).repeat(DIM // 2)
    value = torch.randn(ROWS, HEADS, DIM, generator=generator)
    logits = query.double().sum(dim=-1).float() * torch.tensor(scale * math.log2(math.e))
    weights = torch.exp2(logits - sinks * math.log2(math.e))
    attended = tuple(Attended(row, query[row : row + 1], key, value[row : row + 1]) for row in range(ROWS))
    return Output(weights.unsqueeze(-1) * value * off, None, attended, scale, 1.0, sinks=sinks)


@pytest.mark.parametrize(("off", "tiers"), [(1.0, set()), (1.001, {Tier.T1})])
def test_the_rounding_of_the_scale_of_logits_is_no_common_error(layer: Any, off: float, tiers: set[Tier]) -> None:
    layer = replace(layer, dtype=torch.float32, kv_heads=HEADS, sinks=torch.zeros(HEADS), model=CALIBRATED)
    for scale in (0.0611, 0.2118, 0.3077):
        output = one_key_below_a_sink(scale, off)
        assert {each.tier for each in layer.judged(output, Contract()).observations} == tiers
