"""Each statistical tier fails just above its bound and not just below, and a tier that is switched off lets it pass."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnfuzz.harness.judge import Judgement
from attnfuzz.harness.judge.common_error import Signs, allowed_score, same_answers
from attnfuzz.harness.judge.element_bound import element_bound
from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.exact_weights import exact_bound, exact_lse_bound
from attnfuzz.harness.judge.lse_bound import lse_bound
from attnfuzz.harness.judge.recurring import Statistic
from attnfuzz.harness.judge.row_error import row_error
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.tiers import ALL_TIERS, ALPHA, Tier
from attnfuzz.kernels.interface.backend import Output
from attnfuzz.reference.case import ValueFamily
from attnfuzz.reference.contract import Contract, LseBase

LSE_STEP = 0.1
"""T4 and T5 allow an LSE about ten fp32 roundings, so that it can't be put any closer to its bound."""

HEARD = len(ALL_TIERS) - 2
"""T1 to T5: those that share alpha."""


def judged(layer: Any, output: Output, off: frozenset[Tier] = frozenset()) -> Judgement:
    judgement: Judgement = layer.judged(output, Contract(lse=LseBase.E), tiers=ALL_TIERS - off)
    return judgement


def perfect(layer: Any) -> tuple[Output, ErrorBudget]:
    """An output that is its answer, to the last bit of fp32, and its budget."""
    output = layer.run()
    budget = layer.budget(output, ALPHA / HEARD)
    return replace(output, out=budget.answer.out.float(), lse=budget.answer.lse.float()), budget


def only_failure(judgement: Judgement) -> Observation:
    (found,) = judgement.observations
    return found


@pytest.fixture
def rounding(layer: Any) -> Any:
    """A layer whose weights are rounded to bf16, so that bounds are far above the fp32 roundings of these tests."""
    return replace(layer, dtype=torch.float32, probabilities=torch.bfloat16)


def one_element(output: Output, budget: ErrorBudget, relative: float) -> Output:
    out = output.out.clone()
    out[2, 3, 5] += relative * element_bound(budget)[2, 3, 5].item()
    return replace(output, out=out)


def one_row(output: Output, budget: ErrorBudget, relative: float) -> Output:
    signs = torch.randn(output.out.shape[2], generator=torch.Generator().manual_seed(1)).sign()
    error = torch.zeros_like(budget.answer.out)
    error[2, 3] = budget.variance[2, 3].sqrt() * signs
    error[2, 3] *= (relative / row_error(budget, error).margin) ** 0.5
    # The margin is that of a threshold that depends on which rows are above the screen: once more from near 1.
    error[2, 3] *= (relative / row_error(budget, error).margin) ** 0.5
    return replace(output, out=output.out + error.float())


def one_lse(output: Output, budget: ErrorBudget, relative: float) -> Output:
    assert output.lse is not None
    lse = output.lse.clone()
    lse[2, 3] += relative * lse_bound(budget)[2, 3].item()
    return replace(output, lse=lse)


@pytest.mark.parametrize(
    ("tier", "kind", "wrong", "step"),
    [
        (Tier.T1, Kind.OUTPUT_MISMATCH, one_element, 0.01),
        (Tier.T2, Kind.OUTPUT_MISMATCH, one_row, 0.01),
        (Tier.T4, Kind.LSE_MISMATCH, one_lse, LSE_STEP),
    ],
)
def test_an_error_just_above_the_bound_fails_and_one_just_below_does_not(
    rounding: Any, tier: Tier, kind: Kind, wrong: Callable[[Output, ErrorBudget, float], Output], step: float
) -> None:
    output, budget = perfect(rounding)
    above = judged(rounding, wrong(output, budget, 1 + step))
    found = only_failure(above)
    assert (found.kind, found.tier) == (kind, tier)
    assert above.margins[tier] == pytest.approx(1 + step, abs=step / 2)
    assert judged(rounding, wrong(output, budget, 1 - step)).observations == ()
    assert judged(rounding, wrong(output, budget, 1 + step), frozenset({tier})).observations == ()


@pytest.mark.parametrize(
    ("place", "kind", "step"), [("out", Kind.OUTPUT_MISMATCH, 0.01), ("lse", Kind.LSE_MISMATCH, LSE_STEP)]
)
def test_rows_with_exact_weights_fail_just_above_their_bound(
    rounding: Any, place: str, kind: Kind, step: float
) -> None:
    variant = replace(rounding, family=ValueFamily.ZEROS, lengths=((1, 400),) * 3, q_heads=2, kv_heads=1)
    output, budget = perfect(variant)
    assert bool(budget.exact_weights.all())

    def wrong(relative: float) -> Output:
        assert output.lse is not None
        out, lse = output.out.clone(), output.lse.clone()
        if place == "out":
            out[1, 1, 7] += relative * exact_bound(budget, torch.tensor([3]))[0, 7].item()
        else:
            lse[1, 1] += relative * exact_lse_bound(budget)[1, 1].item()
        return replace(output, out=out, lse=lse)

    found = only_failure(judged(variant, wrong(1 + step)))
    assert (found.kind, found.tier, found.place) == (kind, Tier.T5, place)
    assert judged(variant, wrong(1 - step)).observations == ()
    assert judged(variant, wrong(1 + step), frozenset({Tier.T5})).observations == ()


def signs_of(off: torch.Tensor, shared: torch.Tensor, answers: torch.Tensor) -> Signs:
    return Signs(off, shared, lambda: answers, lambda: Statistic(None, off))


def test_signs_fail_just_above_the_score_that_chance_allows(rounding: Any) -> None:
    _, budget = perfect(rounding)
    allowed = allowed_score(budget)
    assert 2 * 3 * math.exp(-(allowed**2) / 2) == pytest.approx(ALPHA / HEARD)
    rows = 10_000
    for relative in (0.99, 1.01):
        positive = round(rows / 2 + relative * allowed * math.sqrt(rows) / 2)
        off = torch.ones(rows, dtype=torch.float64)
        off[positive:] = -1
        signs = signs_of(off, torch.zeros(rows), torch.arange(rows))
        assert (signs.score > allowed) == (relative > 1)


def test_shared_errors_and_copied_rows_do_not_count_in_the_sign_test() -> None:
    rows = 400
    one, answers = torch.ones(rows, dtype=torch.float64), torch.arange(rows, dtype=torch.float64) + 1
    assert signs_of(one, one * 0, same_answers(answers)).score == pytest.approx(20)
    assert signs_of(one, one, same_answers(answers)).score == 0
    assert signs_of(one, one * 0, same_answers(one)).score == pytest.approx(1)
    assert signs_of(one, one * 0, same_answers(one * (1 + 1e-12 * answers))).score == pytest.approx(1)


@pytest.mark.parametrize("factor", [1 - 1e-3, 1 + 1e-4])
def test_a_small_scale_error_over_4096_rows_is_seen_by_signs_alone(layer: Any, factor: float) -> None:
    variant = replace(layer, probabilities=torch.bfloat16, lengths=((64, 80),) * 8, dim=32, tile=128, seed=6)
    output = variant.run()
    exact = torch.cat([variant._attend(*operands(entry))[0] for entry in output.attended])
    right, wrong = (replace(output, out=(exact * by).to(variant.dtype)) for by in (1.0, factor))
    assert variant.judged(right).observations == ()
    found = variant.only(wrong)
    assert found.tier == Tier.T3
    assert f"out is {'0.999' if factor < 1 else '1.0001'}" in found.message
    assert "over 4096 rows" in found.message
    assert variant.judged(wrong, tiers=ALL_TIERS - {Tier.T3}).observations == ()


def operands(entry: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return entry.query.float(), entry.key.float(), entry.value.float()


def test_tiers_that_are_switched_off_leave_their_alpha_to_the_others(rounding: Any) -> None:
    rounding = replace(rounding, lengths=((1, 400),) * 3)
    output, budget = perfect(rounding)
    wrong = one_element(output, budget, 1.0)
    all_heard = judged(rounding, wrong).margins[Tier.T1]
    alone = judged(rounding, wrong, ALL_TIERS - {Tier.T1}).margins[Tier.T1]
    assert all_heard == pytest.approx(1, rel=1e-4)
    assert all_heard < alone < 1.1


def test_a_fast_division_by_a_huge_denominator_may_give_nothing(layer: Any) -> None:
    plain = replace(layer, lengths=((1, 1),), probabilities=torch.bfloat16)
    (entry,) = plain.run().attended
    key = entry.key.repeat_interleave(plain.q_heads // plain.kv_heads, dim=1)
    logits = (entry.query.double() * key.double()).sum(-1).flatten() * plain.dim**-0.5
    # The denominator is e^88, which is above 2^126, and the output some 1e-38, which bf16 can hold.
    variant = replace(plain, sinks=(logits + 88).float())
    output = variant.run()
    nothing = replace(output, out=torch.zeros_like(output.out))
    assert not variant.judged(nothing).observations
    ten_times = replace(plain, sinks=(logits + 85).float())
    assert ten_times.only(replace(ten_times.run(), out=torch.zeros_like(output.out))).kind is Kind.OUTPUT_MISMATCH
