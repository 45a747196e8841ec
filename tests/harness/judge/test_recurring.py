"""T3 on rows whose weights take the same few values, which are rounded alike in all of them."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from attnfuzz.harness.judge import recurring
from attnfuzz.harness.judge.common_error import allowed_score, common_errors
from attnfuzz.harness.judge.judged_again import Ties, nearness
from attnfuzz.harness.judge.recurring import Statistic, hoeffding, recurring_error
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.reference.case import ValueFamily
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.row import head_rows, row_weights

MANY = ((16, 64), (16, 40), (16, 96), (16, 128))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "soft_cap", "dtype"),
    [
        (ValueFamily.DISCRETE, 0.0, torch.bfloat16),
        (ValueFamily.NORMAL, 0.1, torch.bfloat16),
        (ValueFamily.LARGE_LOGITS, 0.1, torch.bfloat16),
        (ValueFamily.NORMAL, 0.01, torch.float16),
    ],
)
def test_weights_that_recur_are_no_common_error(
    layer: Any, family: ValueFamily, soft_cap: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = [
        replace(layer, lengths=MANY, family=family, soft_cap=soft_cap, dtype=dtype, probabilities=dtype, seed=seed)
        for seed in range(3)
    ]
    outputs = [kernel.run() for kernel in kernels]
    assert not any(kernel.judged(output).observations for kernel, output in zip(kernels, outputs, strict=True))
    monkeypatch.setattr("attnfuzz.harness.judge.common_error.recurring_error", lambda *_: 0.0)
    found = [kernel.judged(output).observations for kernel, output in zip(kernels, outputs, strict=True)]
    assert {observation.tier for observations in found for observation in observations} == {Tier.T3}


def test_small_weights_that_recur_are_no_common_error(layer: Any) -> None:
    """Every second element of the output has weights of e^-40 to e^-28 alone, which differ from key to key."""
    kernel = replace(layer, lengths=((191, 199),), family=ValueFamily.FAINT, probabilities=torch.bfloat16, softmax=0.37)
    kernels = [replace(kernel, q_heads=2, kv_heads=1, dim=24, seed=seed) for seed in range(20)]
    assert not any(kernel.judged(kernel.run()).observations for kernel in kernels)


@pytest.mark.parametrize("family", [ValueFamily.NORMAL, ValueFamily.PEAKED])
def test_weights_that_differ_add_next_to_nothing(layer: Any, family: ValueFamily) -> None:
    """A scale that is off by 1 in 1,000 shows as before."""
    kernel = replace(layer, lengths=MANY, family=family, probabilities=torch.bfloat16)
    output = kernel.run()
    budget = kernel.budget(output)
    scale, _, _ = common_errors(budget, output.out.to(torch.float64) - budget.answer.out, budget.answer.visible > 0)
    allowed = allowed_score(budget)
    chance = allowed * float(scale.off.norm())
    assert recurring_error(budget, scale.statistic(), allowed) < 0.1 * chance


def test_a_common_error_shows_beside_weights_that_recur(layer: Any) -> None:
    kernel = replace(layer, lengths=MANY, family=ValueFamily.DISCRETE, probabilities=torch.bfloat16)
    output = kernel.run()
    exact = kernel.budget(output).answer.out
    output.out.copy_(exact * 1.01)
    assert [each.tier for each in kernel.judged(output, tiers={Tier.T3}).observations] == [Tier.T3]


def test_errors_of_one_cell_add_up_at_the_worst_phase() -> None:
    cells = recurring._Cells(4, torch.device("cpu"))
    cells.add(torch.full((100,), 1.5), torch.ones(100, dtype=torch.float64))
    assert cells.bound(1.0, sawtooth=True) == pytest.approx(100 - 2 * 10)
    spread = recurring._Cells(4, torch.device("cpu"))
    spread.add(torch.linspace(1, 1.999, 1600), torch.ones(1600, dtype=torch.float64))
    assert spread.bound(1.0, sawtooth=True) < 1
    assert spread.bound(1.0, sawtooth=False) == pytest.approx(1600 - 2 * 40, rel=0.01)


def test_independent_bounds_add_up_to_no_more_than_all_of_them() -> None:
    bounds = torch.tensor([3.0, 4.0])
    assert hoeffding(bounds, 1.0) == 5
    assert hoeffding(bounds, 6.0) == 7


@pytest.mark.parametrize("noise", [NoiseModel.tf32(), NoiseModel.tf32(cut=True)])
def test_errors_of_values_are_common_to_all_queries(layer: Any, noise: NoiseModel) -> None:
    kernel = replace(layer, lengths=((64, 40),))
    budget = replace(kernel.budget(kernel.run()), noise=noise)
    ones = torch.ones_like(budget.answer.out)
    statistic = Statistic(ones, ones.sum(dim=-1))
    without = replace(budget, noise=msgspec.structs.replace(noise, operands=0.0))
    assert recurring_error(budget, statistic, 1.0) > recurring_error(without, statistic, 1.0)


def test_a_statistic_is_summed_up_once_for_all_outputs_of_a_budget(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = replace(layer, lengths=MANY, family=ValueFamily.DISCRETE, probabilities=torch.bfloat16)
    budget = kernel.budget(kernel.run())
    ones = torch.ones_like(budget.answer.out)
    first, second = (Statistic(size * ones, size * ones.sum(dim=-1)) for size in (1, 2))
    expected = [
        recurring_error(budget, each, deviations) for each, deviations in ((first, 1.0), (first, 2.0), (second, 1.0))
    ]
    assert len(set(expected)) == 3
    monkeypatch.setattr(recurring, "head_rows", None)
    again = Statistic(ones.clone(), ones.sum(dim=-1))
    assert [
        recurring_error(budget, each, deviations) for each, deviations in ((again, 1.0), (again, 2.0), (second, 1.0))
    ] == expected


def test_blocks_hold_no_more_weights_than_asked_for_or_one_row(layer: Any) -> None:
    kernel = replace(layer, lengths=((3, 40), (5, 8)))
    problem = kernel.budget(kernel.run()).problem
    assert problem.group > 1
    for most in (1, 50, 100):
        assert all(rows.weights.numel() <= max(most, rows.weights.shape[-1]) for rows in head_rows(problem, most))


@pytest.mark.parametrize(
    "changes",
    [{}, {"window_left": 5}, {"sinks": torch.arange(8.0) - 4}, {"soft_cap": 2.0}, {"lengths": ((3, 2), (1, 0))}],
)
def test_rows_in_blocks_are_the_rows_one_by_one(layer: Any, changes: dict[str, Any]) -> None:
    kernel = replace(layer, **changes)
    problem = kernel.budget(kernel.run()).problem
    seen = 0
    for rows in head_rows(problem, 100):
        for token in range(rows.tokens.start, rows.tokens.stop):
            for head in range(rows.heads.start, rows.heads.stop):
                weights, values = row_weights(problem, token, head)
                block = rows.weights[token - rows.tokens.start, head - rows.heads.start]
                visible = block > 0
                torch.testing.assert_close(block[visible], weights[weights > 0], rtol=1e-11, atol=0)
                torch.testing.assert_close(rows.values[visible], values[weights > 0])
                seen += 1
    assert seen == problem.query.shape[0] * 8 - sum(
        8 * q for q, kv in zip(problem.q_lens, problem.kv_lens, strict=True) if not kv
    )


def test_weights_that_the_format_can_not_tell_apart_are_alike(layer: Any) -> None:
    budget = replace(layer, probabilities=torch.bfloat16).budget(layer.run())
    weights = torch.tensor([0.1, 0.1 * (1 + 1e-5), 0.2, 0.21], dtype=torch.float64)
    ties = Ties.of(weights, torch.eye(4, dtype=torch.float64), torch.arange(4.0, dtype=torch.float64), nearness(budget))
    assert len(ties.alike.weights) == 3
    dense = torch.linspace(0.1, 0.2, 40000, dtype=torch.float64)
    groups = Ties.of(dense, dense.unsqueeze(1), torch.arange(40000.0, dtype=torch.float64), nearness(budget)).alike
    # ln 2 over half a roundoff.
    assert len(groups.weights) == pytest.approx(0.693 / 2.0**-9, rel=0.05)
