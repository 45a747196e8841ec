"""One key of 65,536, dropped, doubled or wrong, is found in a bf16 output by its exact weights, and by nothing else."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from wrong_rows import claims_of

from attnfuzz.harness.judge.explain import worst_row
from attnfuzz.harness.verdict.tiers import ALL_TIERS, Tier
from attnfuzz.kernels.interface.backend import Output
from attnfuzz.reference.case import ValueFamily
from attnfuzz.reference.noise import NoiseModel

KEYS = 65_536
EVERY = torch.arange(KEYS)


@pytest.fixture
def probed(layer: Any) -> Any:
    """A bf16 decode with weights of bf16 over 65,536 keys, half of whose heads have q = 0."""
    return replace(
        layer,
        lengths=((1, KEYS),),
        family=ValueFamily.PROBE,
        probabilities=torch.bfloat16,
        q_heads=2,
        kv_heads=1,
        dim=32,
        splits=4,
        tile=4096,
        model=NoiseModel.unknown_kernel(),
    )


@cache
def correct(layer: Any) -> Output:
    """Its output, computed once."""
    output: Output = layer.run()
    return output


def reading(layer: Any, keys: torch.Tensor) -> Output:
    """The output of a kernel that reads these keys, beside all that it should have read."""
    output = correct(layer)
    (entry,) = output.attended
    out, lse = layer._attend(entry.query.float(), entry.key[keys].float(), entry.value[keys].float())
    return replace(output, out=out.to(layer.dtype), lse=lse / math.log(2))


def test_a_correct_kernel_with_unknown_properties_passes(probed: Any) -> None:
    judgement = probed.judged(correct(probed))
    assert judgement.observations == ()
    assert judgement.margins[Tier.T5] < 0.5


WRONG = {
    "as if key 12345 were missing": torch.cat((EVERY[:12345], EVERY[12346:])),
    "as if key 777 were counted twice": torch.cat((EVERY, EVERY[777:778])),
    "as if key 40001 were read instead of key 5000": torch.where(EVERY == 5000, 40001, EVERY),
}


@pytest.mark.slow
@pytest.mark.parametrize("words", WRONG)
def test_one_wrong_key_is_found_and_named(probed: Any, words: str) -> None:
    output = reading(probed, WRONG[words])
    judgement = probed.judged(output)
    found, worst = judgement.observations[0], judgement.worst["out"]
    assert (found.tier, found.place) == (Tier.T5, "out")
    assert judgement.evidence is not None
    assert worst is not None
    assert words in claims_of(worst_row(judgement.evidence, worst, None))
    assert probed.judged(output, tiers=ALL_TIERS - {Tier.T5}).observations == ()


def test_one_missing_key_is_found_in_the_lse_as_well(probed: Any) -> None:
    output = replace(reading(probed, WRONG["as if key 12345 were missing"]), out=correct(probed).out)
    (found,) = probed.judged(output).observations
    assert (found.tier, found.place) == (Tier.T5, "lse")


def test_a_missing_page_is_found(probed: Any) -> None:
    output = reading(probed, torch.cat((EVERY[:1600], EVERY[1616:])))
    assert probed.judged(output, tiers=ALL_TIERS - {Tier.T1}).observations[0].tier == Tier.T5


def test_weights_that_are_rounded_differently_beside_the_sink_pass(layer: Any) -> None:
    """The first part of the keys counts the sink, so that its weights are exp(-c); in the other parts they are 1."""
    judged = replace(
        layer,
        lengths=((1, 512), (3, 300)),
        family=ValueFamily.PROBE,
        dtype=torch.float16,
        probabilities=torch.float16,
        sinks=torch.linspace(0.1, 1.1, layer.q_heads),
        splits=4,
        sinks_first=True,
    )
    assert judged.judged(judged.run()).observations == ()
