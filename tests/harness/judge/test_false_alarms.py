"""Correct kernels pass, whatever they compute in and attend to."""

import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from repetition import examples

from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.kernels.interface.backend import Attended, Output
from attnfuzz.kernels.libraries.torch_attention import unfused_noise
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode, ValueFamily
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.features.numbers import families
from attnfuzz.reference.noise import NoiseModel

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

layers = st.fixed_dictionaries(
    {
        "lengths": st.lists(
            st.tuples(st.sampled_from((1, 1, 3)), st.sampled_from((0, 1, 2, 5, 20, 60, 200))), min_size=1, max_size=4
        ).map(tuple),
        "family": st.sampled_from(families(Capability(modes=(Mode.DECODE,)))),
        "dtype": st.sampled_from(DTYPES),
        "kv_dtype": st.sampled_from((None, torch.float8_e4m3fn)),
        "probabilities": st.sampled_from(DTYPES),
        "dim": st.sampled_from((16, 64, 128)),
        "seed": st.integers(0, 2**32),
        "window_left": st.sampled_from((-1, -1, 7)),
        "soft_cap": st.sampled_from((0.0, 0.0, 30.0)),
        "bmm2_scale": st.sampled_from((1.0, 0.37)),
        "splits": st.sampled_from((1, 1, 2, 5)),
        "merged_rounded": st.booleans(),
        "lead": st.sampled_from((0.0, 0.3, 2.5)),
        "tile": st.sampled_from((1, 32)),
        "sinks": st.sampled_from((None, None, torch.linspace(-1, 1, 8))),
    }
)


@pytest.mark.slow
@examples(25, 500)
def test_a_correct_kernel_passes(layer: Any, count: int) -> None:
    @settings(max_examples=count, deadline=None)
    @given(layers)
    def passes(variation: dict[str, Any]) -> None:
        variant = replace(layer, **variation)
        if variant.sinks is not None:  # merged in as well, which would be one more rounding
            variant = replace(variant, merged_rounded=False)
        judgement = variant.judged(variant.run())
        assert judgement.observations == ()
        assert all(margin <= 1 for margin in judgement.margins.values())

    passes()


@pytest.mark.slow
@pytest.mark.parametrize("family", ValueFamily)
@pytest.mark.parametrize("probabilities", [torch.float32, torch.bfloat16])
def test_a_correct_kernel_passes_with_many_keys(layer: Any, family: ValueFamily, probabilities: torch.dtype) -> None:
    variant = replace(layer, lengths=((1, 4096),), family=family, probabilities=probabilities, splits=4, tile=128)
    assert variant.judged(variant.run()).observations == ()


@pytest.mark.parametrize("family", [ValueFamily.NORMAL, ValueFamily.STAGNANT])
def test_weights_in_fp8_pass_by_their_own_model_alone(layer: Any, family: ValueFamily) -> None:
    variant = replace(layer, lengths=((1, 60),) * 8, family=family, probabilities=torch.float8_e4m3fn, tile=128)
    for model, passes in (
        (NoiseModel.fp8_probabilities(), True),
        (NoiseModel.rounded_probabilities(torch.bfloat16), False),
    ):
        judged = replace(variant, model=model)
        assert (judged.judged(judged.run()).observations == ()) is passes


@pytest.mark.parametrize("seed", range(3))
def test_partial_results_weighted_by_large_fp32_lses_pass(layer: Any, seed: int) -> None:
    variant = replace(
        layer, lengths=((1, 20),) * 40, family=ValueFamily.LARGE_LOGITS, dtype=torch.float32, splits=5, seed=seed
    )
    assert variant.judged(variant.run()).observations == ()


def test_weights_that_all_round_alike_pass_with_their_common_error(layer: Any) -> None:
    variant = replace(
        layer,
        lengths=((1, 300),),
        family=ValueFamily.CONSTANT,
        dtype=torch.float32,
        probabilities=torch.bfloat16,
        lead=0.3,
    )
    output = variant.run()
    common = (output.out[0, 0] / output.attended[0].value[0, 0] - 1).abs()
    assert common.min() > 2.0**-11
    assert variant.judged(output).observations == ()


def test_errors_that_all_elements_share_pass_with_few_dimensions_to_average_over(layer: Any) -> None:
    variant = replace(layer, lengths=((1, 40),) * 60, dtype=torch.float32, probabilities=torch.bfloat16)
    collinear = torch.linspace(0.5, 2.0, variant.dim)
    weights = torch.zeros(0)
    output = variant.run()
    for entry in output.attended:
        sizes = torch.randn(entry.value.shape[:2], generator=torch.Generator().manual_seed(entry.first_row))
        weights = torch.cat((weights, sizes.flatten()))
        entry.value.copy_(sizes.unsqueeze(-1) * collinear)
    parts = [variant._attend(entry.query, entry.key, entry.value)[0] for entry in output.attended]
    assert variant.judged(replace(output, out=torch.cat(parts))).observations == ()


def test_logits_rounded_once_the_sink_was_subtracted_pass_by_a_noise_model_that_says_so(layer: Any) -> None:
    """As of gpt-oss in transformers: 0.05 below a sink of 20 is -19.95, which bfloat16 rounds to -20."""
    usual, sink = unfused_noise(DType.BFLOAT16), 20.0
    variant = replace(layer, lengths=((1, 50),) * 60, sinks=torch.full((8,), sink))
    output = variant.run()
    parts = []
    for entry in output.attended:
        entry.query.fill_(0.125)
        entry.key.fill_(0.05)
        below = (entry.query.float() @ entry.key[:, 0].float().T * variant.dim**-0.5 - sink).bfloat16()
        weights = torch.cat((below, torch.zeros(1, 8, 1)), dim=-1).softmax(-1)[..., :-1].bfloat16().float()
        parts.append(torch.einsum("qhk,khd->qhd", weights, entry.value.float().repeat_interleave(4, 1)))
    shifted = replace(output, out=torch.cat(parts).bfloat16(), lse=None)
    unaware = replace(variant, model=usual)
    aware = replace(variant, model=msgspec.structs.replace(usual, shifted=2.0**-8))
    assert unaware.judged(shifted, Contract()).observations
    assert aware.judged(shifted, Contract()).observations == ()
    assert aware.judged(replace(shifted, out=shifted.out * 2), Contract()).observations


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
