"""Rows whose weights come in groups of equal ones, which round alike."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from attnfuzz.harness.judge.element_bound import element_bound
from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.exact_weights import exact_bound
from attnfuzz.harness.judge.judged_again import (
    MOST_ROWS_AGAIN,
    Groups,
    Ties,
    element_allowance,
    judged_again,
    lse_ties_allowance,
    operands_allowance,
    ties_allowance,
)
from attnfuzz.harness.judge.lse_bound import lse_bound
from attnfuzz.harness.judge.row_error import row_error
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.reference.attention import attend
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.problem import Problem
from attnfuzz.reference.row import row_weights

ROWS, KEYS, DIM = 64, 96, 16


def problem_with(groups: int) -> Problem:
    """64 queries on 96 keys, of which there are `groups` different ones, with a value each."""
    generator = torch.Generator().manual_seed(7)
    query = torch.randn(ROWS, 1, DIM, generator=generator)
    key, value = (torch.randn(groups, 1, DIM, generator=generator).repeat(KEYS // groups, 1, 1) for _ in range(2))
    return Problem(query, key, value, (ROWS,), (KEYS,), 0.25, causal=False)


def budget_of(problem: Problem, noise: NoiseModel) -> ErrorBudget:
    return ErrorBudget(problem, attend(problem, moments=True), noise, torch.float32, 1, 1e-9)


def rounded_weights(problem: Problem) -> torch.Tensor:
    """What a correct kernel gives that rounds its weights to bf16, [64, 1, Dv] of fp64."""
    rows = []
    for token in range(ROWS):
        weights, values = row_weights(problem, token, 0)
        unnormalised = weights / weights.max()
        rounded = unnormalised.to(torch.bfloat16).to(torch.float64)
        rows.append((rounded @ values / unnormalised.sum()).unsqueeze(0))
    return torch.stack(rows)


def opposite_runs() -> Problem:
    """64 queries of zeros on 1,000 keys, of which half have one value, and half nearly its opposite."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(1, 1, DIM, generator=generator)
    second = -first * (1 + 1e-4 * torch.randn(1, 1, DIM, generator=generator))
    value = torch.cat([each.expand(500, -1, -1) for each in (first, second)])
    return Problem(torch.zeros(ROWS, 1, DIM), torch.ones(1000, 1, DIM), value, (ROWS,), (1000,), 0.25, causal=False)


def rounded_to_tf32(number: torch.Tensor) -> torch.Tensor:
    """fp32 numbers with 10 bits of mantissa, rounded to nearest."""
    return ((number.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def test_equal_values_that_are_rounded_alike_do_not_cancel_where_the_values_do() -> None:
    problem = opposite_runs()
    budget = budget_of(problem, NoiseModel.tf32())
    error = rounded_to_tf32(problem.value).double().mean(dim=0) - budget.answer.out

    of_exact = exact_bound(budget, torch.tensor([0]))[0]
    assert (error[0, 0].abs() > of_exact).any(), "the test shows nothing"
    assert (error[0, 0].abs() <= of_exact + operands_allowance(budget, 0, 0)).all()
    assert (error[0, 0].abs() <= element_bound(budget)[0, 0] + element_allowance(budget, 0, 0)).all()
    assert not row_error(budget, error).wrong
    assert row_error(budget_of(problem, replace_operands(NoiseModel.tf32())), error).wrong, "the test shows nothing"


def test_a_dropped_key_shows_beside_equal_values_that_cancel() -> None:
    problem = opposite_runs()
    budget = budget_of(problem, NoiseModel.tf32())
    dropped = (rounded_to_tf32(problem.value).double().sum(dim=0) - problem.value[3].double()) / 999
    error = dropped - budget.answer.out
    of_exact = exact_bound(budget, torch.tensor([0]))[0] + operands_allowance(budget, 0, 0)
    assert (error[0, 0].abs() > of_exact).any()
    assert row_error(budget, error).wrong


def replace_operands(noise: NoiseModel) -> NoiseModel:
    """The model of a kernel that reads values exactly."""
    return msgspec.structs.replace(noise, operands=0.0)


def test_groups_are_found_by_their_weights_whatever_their_order() -> None:
    weights = torch.tensor([0.1, 0.3, 0.1, 0.2, 0.3], dtype=torch.float64)
    values = torch.eye(5, dtype=torch.float64)

    ties = Ties.of(weights, values, torch.arange(5.0, dtype=torch.float64))

    torch.testing.assert_close(ties.alike.weights, torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64))
    assert ties.alike.weighted.tolist() == [[0.1, 0, 0.1, 0, 0], [0, 0, 0, 0.2, 0], [0, 0.3, 0, 0, 0.3]]


def test_copies_of_a_key_are_reported_from_other_keys_of_equal_weight() -> None:
    weights = torch.full((5,), 0.2, dtype=torch.float64)
    values = torch.eye(5, dtype=torch.float64)

    copies = Ties.of(weights, values, torch.tensor([0.5, -1.0, 0.5, 0.2, -1.0], dtype=torch.float64)).copies

    assert copies.weights.tolist() == [0.4, 0.2, 0.4]
    assert copies.weighted.tolist() == [[0, 0.2, 0, 0, 0.2], [0, 0, 0, 0.2, 0], [0.2, 0, 0.2, 0, 0]]


def test_sums_over_groups_are_those_of_their_terms() -> None:
    generator = torch.Generator().manual_seed(3)
    weights = torch.rand(12, generator=generator, dtype=torch.float64)
    values = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    out = torch.randn(4, generator=generator, dtype=torch.float64)
    group = torch.arange(12) % 3

    groups = Groups.by(group, weights, values)

    shifted = torch.stack([(weights.unsqueeze(-1) * (values - out))[group == index].sum(dim=0) for index in range(3)])
    torch.testing.assert_close(groups.apart(out), shifted)
    torch.testing.assert_close(groups.spread(out), shifted.square().sum(dim=0))


def test_without_ties_nothing_more_is_allowed() -> None:
    budget = budget_of(problem_with(KEYS), NoiseModel.rounded_probabilities(torch.bfloat16))

    assert ties_allowance(budget, 0, 0).max() < 1e-12
    assert lse_ties_allowance(budget, 0, 0) < 1e-12


def test_a_row_that_sees_nothing_has_no_ties() -> None:
    nothing = torch.empty(0, dtype=torch.float64)
    assert Ties.of(nothing, torch.empty(0, 4, dtype=torch.float64), nothing).alike.weights.tolist() == []


@pytest.mark.parametrize("groups", [2, 3, 8])
def test_t1_and_t2_do_not_accuse_a_kernel_whose_equal_weights_round_alike(groups: int) -> None:
    problem = problem_with(groups)
    budget = budget_of(problem, NoiseModel.rounded_probabilities(torch.bfloat16))
    error = rounded_weights(problem) - budget.answer.out

    allowed = torch.stack([ties_allowance(budget, token, 0) for token in range(ROWS)]).unsqueeze(1)

    assert (error.abs() <= element_bound(budget) + allowed).all()
    assert not row_error(budget, error).wrong


def test_two_groups_break_the_bounds_of_independent_errors() -> None:
    """What the ties are for: without them T2 accuses the same correct kernel."""
    problem = problem_with(2)
    budget = budget_of(problem, NoiseModel.rounded_probabilities(torch.bfloat16))
    error = rounded_weights(problem) - budget.answer.out

    untied = replace(budget, problem=problem_with(KEYS))

    assert row_error(untied, error).wrong


def copies_of_two_keys(copies: int) -> Problem:
    """64 queries on so many copies of each of two keys, which have a value each."""
    problem = problem_with(2)
    key, value = (tensor[:2].repeat(copies, 1, 1) for tensor in (problem.key, problem.value))
    return replace(problem, key=key, value=value, kv_lens=(2 * copies,))


def test_copies_of_a_key_have_the_same_error_in_their_logits() -> None:
    problem = copies_of_two_keys(500)
    noise = NoiseModel(probabilities=2.0**-24, logits=2.0**-12, accumulate=2.0**-24)
    budget = budget_of(problem, noise)
    off = torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    outs, lses = [], []
    for token in range(ROWS):
        weights, values = row_weights(problem, token, 0)
        logits = weights.log() + (off[token] * budget.row_logit_variance[token, 0].sqrt()).repeat(500)
        outs.append(torch.softmax(logits, dim=0) @ values)
        lses.append(logits.logsumexp(dim=0))
    error, lse_error = torch.stack(outs).unsqueeze(1) - budget.answer.out, torch.stack(lses).unsqueeze(1)
    allowed = torch.stack([ties_allowance(budget, token, 0) for token in range(ROWS)]).unsqueeze(1)
    lse_allowed = torch.tensor([[lse_ties_allowance(budget, token, 0)] for token in range(ROWS)])

    assert (error.abs() > element_bound(budget)).any(), "independent errors explain it: the test shows nothing"
    assert (error.abs() <= element_bound(budget) + allowed).all()
    assert not row_error(budget, error).wrong
    assert (lse_error.abs() > lse_bound(budget)).any(), "independent errors explain it: the test shows nothing"
    assert (lse_error.abs() <= lse_bound(budget) + lse_allowed).all()


@pytest.mark.parametrize(("share", "failures"), [(0.99, 0), (1.01, 1)])
def test_t1_adds_an_allowance_for_ties_to_the_bound_of_a_row(layer: Any, share: float, failures: int) -> None:
    layer = replace(layer, lengths=((4, KEYS),), dtype=torch.float32, probabilities=torch.bfloat16)
    run = layer.run()
    (attended,) = run.attended
    two = (torch.arange(KEYS) % 2).long()
    run = replace(run, attended=(replace(attended, key=attended.key[two], value=attended.value[two]),))
    budget = layer.budget(run)
    out = budget.answer.out.float()
    allowed = element_bound(budget)[1, 2] + ties_allowance(budget, 1, 2)
    assert allowed[5] > 1.5 * element_bound(budget)[1, 2, 5]
    out[1, 2, 5] += share * allowed[5].item()

    found = layer.judged(replace(run, out=out, lse=None), Contract(), tiers={Tier.T1})

    assert len(found.observations) == failures


def test_the_lse_allowance_covers_the_sum_of_equal_terms() -> None:
    noise = NoiseModel(probabilities=2.0**-24, logits=2.0**-24, accumulate=2.0**-12)
    budget = budget_of(problem_with(2), noise)

    assert 0.5 * KEYS * 2.0**-12 < lse_ties_allowance(budget, 0, 0) < KEYS * 2.0**-12
    assert (lse_bound(budget) > 0).all()


def judged(ratios: list[float], again: Callable[[int, int], float]) -> tuple[tuple[int, int] | None, list[float]]:
    ratio = torch.tensor(ratios).unsqueeze(1)
    return judged_again(ratio, again), ratio.flatten().tolist()


def test_rows_that_fail_are_judged_again_the_worst_first() -> None:
    asked = []

    def again(token: int, head: int) -> float:
        asked.append((token, head))
        return 0.5 if token == 2 else 1.5

    worst, ratios = judged([0.9, 2.0, 4.0, 3.0], again)

    assert worst == (3, 0)
    assert ratios == pytest.approx([0.9, 2.0, 0.5, 1.5])
    assert asked == [(2, 0), (3, 0)]


def test_only_the_worst_rows_are_judged_again() -> None:
    ratio = torch.linspace(1.5, 3.0, 10 * MOST_ROWS_AGAIN, dtype=torch.float64).view(-1, 10)
    worst = ratio.flatten().sort(descending=True).values[:MOST_ROWS_AGAIN].tolist()
    asked: list[float] = []

    def passes(token: int, head: int) -> float:
        asked.append(ratio[token, head].item())
        return 0.5

    assert judged_again(ratio, passes) is None
    assert asked == worst
    assert ratio.max().item() == 1.0


def test_only_the_worst_rows_get_a_threshold_of_their_own() -> None:
    # Values along one line: whatever a weight is wrong by, it is to all elements of a row at once.
    generator = torch.Generator().manual_seed(5)
    query = torch.randn(3 * MOST_ROWS_AGAIN, 1, DIM, generator=generator)
    key = torch.randn(KEYS, 1, DIM, generator=generator)
    value = torch.randn(KEYS, 1, 1, generator=generator) * torch.randn(DIM, generator=generator)
    problem = Problem(query, key, value, (len(query),), (KEYS,), 0.25, causal=False)
    budget = budget_of(problem, NoiseModel(probabilities=2.0**-8, logits=2.0**-24, accumulate=2.0**-24))
    found = row_error(budget, 4 * budget.variance.sqrt())
    assert not found.wrong
    assert len([row for row in budget.memo if row[0] == "T2: correlation"]) == MOST_ROWS_AGAIN
    assert not [row for row in budget.memo if row[0] == "T2 with sums: variance"]


def test_the_memory_of_a_budget_does_not_grow_with_keys() -> None:
    """64 rows of 131,072 keys, with a value of 128 elements each, would take 9 GB."""
    budget = budget_of(problem_with(6), NoiseModel.rounded_probabilities(torch.bfloat16))
    for token in range(ROWS):
        element_allowance(budget, token, 0)
        lse_ties_allowance(budget, token, 0)
    of_rows = [each for name, each in budget.memo.items() if isinstance(name, tuple)]
    assert len(of_rows) >= 2 * ROWS
    assert max(each.numel() for each in of_rows if isinstance(each, torch.Tensor)) <= DIM
    assert {name for name in budget.memo if isinstance(name, str)} == {"row", "ties"}
