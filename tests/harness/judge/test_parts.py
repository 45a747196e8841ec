"""Rows whose parts are rounded before they are merged, and are much larger than what they add up to."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from attnfuzz.harness.judge.element_bound import element_bound
from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.exact_weights import exact_bound
from attnfuzz.harness.judge.judged_again import element_allowance, largest_run, parts_allowance, sums_allowance
from attnfuzz.harness.judge.row_error import row_error
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.kernels.interface.backend import Output
from attnfuzz.reference.attention import attend
from attnfuzz.reference.case import ValueFamily
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.key_shares import KeyShares
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.problem import Problem

KEYS, DIM = 4099, 32
CUTS = range(1500, 2600, 37)


SHARES = KeyShares(ranks=2, interleave=3)


def budget_of(roundings: int = 2, values: torch.Tensor | None = None, shares: KeyShares | None = None) -> ErrorBudget:
    """One query that weighs 4,099 keys alike: a first half of +1, and a second of -1, in every element."""
    if values is None:
        values = torch.where(torch.arange(KEYS) < KEYS // 2, 1.0, -1.0).expand(DIM, -1).T
    key = torch.randn(KEYS, 1, 8, generator=torch.Generator().manual_seed(3))
    problem = Problem(torch.zeros(1, 1, 8), key, values.unsqueeze(1), (1,), (KEYS,), 1.0)
    noise = NoiseModel.fp32_arithmetic()
    return ErrorBudget(problem, attend(problem, moments=True), noise, torch.float16, roundings, 1e-4, shares)


def merged(problem: Problem, first: torch.Tensor) -> torch.Tensor:
    """The output of a correct kernel that merges two parts in fp16, [1, 1, Dv] of fp64; `first` marks one's keys."""
    value = problem.value[:, 0].to(torch.float64)
    parts = [part.mean(dim=0).to(torch.float16).to(torch.float64) for part in (value[first], value[~first])]
    count = int(first.sum())
    out = (parts[0] * count + parts[1] * (KEYS - count)) / KEYS
    return out.to(torch.float16).to(torch.float64).view(1, 1, DIM)


def test_the_largest_run_is_that_of_all_runs_of_keys() -> None:
    generator = torch.Generator().manual_seed(4)
    weights = torch.rand(9, generator=generator, dtype=torch.float64)
    values = torch.randn(9, 3, generator=generator, dtype=torch.float64)
    terms = weights.unsqueeze(-1) * values
    runs = [terms[begin:end].sum(dim=0).abs() for begin in range(9) for end in range(begin + 1, 10)]
    torch.testing.assert_close(largest_run(weights, values), torch.stack(runs).amax(dim=0))


def test_no_tier_accuses_a_kernel_for_the_roundings_of_its_parts() -> None:
    budget = budget_of()
    errors = [merged(budget.problem, torch.arange(KEYS) < cut) - budget.answer.out for cut in CUTS]
    row = torch.zeros(1, dtype=torch.int64)
    for bound in (element_bound(budget), exact_bound(budget, row).view(1, 1, DIM)):
        assert any((error.abs() > bound).any() for error in errors), "without parts all pass: the test shows nothing"
        assert all((error.abs() <= bound + element_allowance(budget, 0, 0)).all() for error in errors)
    assert not any(row_error(budget, error).wrong for error in errors)


def test_the_bound_of_a_row_with_parts_includes_their_roundings() -> None:
    budget = budget_of()
    allowed = element_bound(budget) + element_allowance(budget, 0, 0)
    assert allowed.max() < 4 * budget.roundoff
    assert row_error(budget, 4 * allowed).wrong


def test_no_tier_accuses_ranks_that_share_keys_in_turns_for_the_roundings_of_their_parts() -> None:
    own = SHARES.rank_of(torch.arange(KEYS)) == 0
    values = torch.where(own, 1.0, -0.99).unsqueeze(1) * torch.linspace(0.6, 0.95, DIM)
    of_runs, budget = budget_of(values=values), budget_of(values=values, shares=SHARES)
    error = merged(budget.problem, own) - budget.answer.out
    for bound in (element_bound(budget), exact_bound(budget, torch.zeros(1, dtype=torch.int64)).view(1, 1, DIM)):
        consecutive = bound + element_allowance(of_runs, 0, 0)
        assert (error.abs() > consecutive).any(), "it passes as parts of consecutive keys: the test shows nothing"
        assert (error.abs() <= bound + element_allowance(budget, 0, 0)).all()
    assert not row_error(budget, error).wrong


@pytest.mark.parametrize("roundings", [2, 3])
def test_parts_of_random_values_are_about_as_large_as_the_budget_takes_them_to_be(roundings: int) -> None:
    values = torch.randn(KEYS, DIM, generator=torch.Generator().manual_seed(5))
    budget = budget_of(roundings, values)
    assert (parts_allowance(budget, 0, 0) < 2 * element_bound(budget)).float().mean() > 0.9


def test_without_merges_nothing_more_is_allowed() -> None:
    assert not parts_allowance(budget_of(roundings=1), 0, 0).any()


@pytest.mark.parametrize(("factor", "fails"), [(0.999, False), (1.001, True)])
def test_a_row_with_exact_weights_is_held_to_its_bound_and_its_parts(layer: Any, factor: float, *, fails: bool) -> None:
    layer = replace(layer, dtype=torch.float32, family=ValueFamily.PROBE, lengths=((1, 512),))
    output = replace(layer.run(), roundings=3, lse=None)
    budget = layer.budget(output)
    head = int(budget.exact_weights[0].nonzero()[0])
    more = parts_allowance(budget, 0, head)
    element = int(more.argmax())
    bound = exact_bound(budget, torch.tensor([head]))[0, element]
    assert more[element] > 0.1 * bound
    allowed = bound + more[element] + sums_allowance(budget, 0, head, element)
    output.out[0, head, element] = budget.answer.out[0, head, element] + factor * allowed

    found = layer.judged(output, Contract(), tiers={Tier.T5}).observations

    assert [each.tier for each in found] == [Tier.T5] * fails
    assert not fails or f"head {head}, element {element}: " in found[0].message


SPLIT_KEYS = 16384


def evenly(layer: Any, family: ValueFamily = ValueFamily.PROBE) -> tuple[Any, Output]:
    """A layer that attends to codes, whose sums recur, or to other values; its output. Its rows have equal weights."""
    layer = replace(layer, family=family, lengths=((1, SPLIT_KEYS),), q_heads=2, kv_heads=1, dim=16)
    output = replace(layer.run(), roundings=2, lse=None)
    output.attended[0].query.zero_()
    return layer, output


def in_parts(output: Output, size: int, seen: torch.Tensor, sums: int = 1) -> torch.Tensor:
    """The mean of the `seen` values, whose parts of `size` keys are rounded, and merged in fp32 or rounded `sums`."""
    value = output.attended[0].value[seen, 0].double()
    keys = torch.tensor([len(part) for part in value.split(size)]).double()[:, None]
    parts = torch.stack([part.mean(dim=0) for part in value.split(size)]).to(torch.bfloat16) * keys
    if sums > 1:
        totals = torch.stack([keys[start::sums].sum(dim=0) for start in range(sums)])
        parts = torch.stack([parts[start::sums].sum(dim=0) for start in range(sums)]) / totals
        parts = parts.to(torch.bfloat16) * totals
    return (parts.sum(dim=0) / len(value)).to(torch.bfloat16)


@pytest.mark.parametrize(
    ("family", "size", "sums"),
    [(ValueFamily.PROBE, 341, 1), (ValueFamily.PROBE, 585, 1), (ValueFamily.STAGNANT, 151, 16)],
)
def test_even_parts_and_sums_of_them_may_be_rounded(layer: Any, family: ValueFamily, size: int, sums: int) -> None:
    layer, output = evenly(layer, family)
    output.out[0] = in_parts(output, size, torch.ones(SPLIT_KEYS, dtype=torch.bool), sums)
    assert layer.judged(output, Contract()).observations == ()


def test_keys_that_are_missing_in_even_parts_are_found(layer: Any) -> None:
    layer, output = evenly(layer)
    seen = torch.ones(SPLIT_KEYS, dtype=torch.bool)
    seen[(output.attended[0].value[:, 0, 0] > 0).nonzero()[:4]] = False
    output.out[0] = in_parts(output, 512, seen)
    assert [each.tier for each in layer.judged(output, Contract(), tiers={Tier.T5}).observations] == [Tier.T5]
