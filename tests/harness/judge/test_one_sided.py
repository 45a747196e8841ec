"""Sums whose additions are all rounded to the same side: correct kernels that add key by key in fp32 pass."""

from math import log

import pytest
import torch

from attnfuzz.harness.judge.element_bound import element_bound
from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.exact_weights import exact_bound
from attnfuzz.harness.judge.judged_again import element_allowance, lse_ties_allowance, sums_allowance
from attnfuzz.harness.judge.lse_bound import lse_bound
from attnfuzz.harness.judge.one_sided import one_sided_error, partial_sums
from attnfuzz.harness.judge.row_error import row_error
from attnfuzz.reference.attention import attend
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.problem import Problem

DIM = 16
STEP = 2.0**-24


def one_row(logits: torch.Tensor, value: torch.Tensor, noise: NoiseModel | None = None) -> ErrorBudget:
    """One query on keys with these logits [k] and values [k, Dv], fp32."""
    key = logits.float().view(-1, 1, 1)
    problem = Problem(torch.ones(1, 1, 1), key, value.unsqueeze(1), (1,), (len(key),), 1.0, causal=False)
    return ErrorBudget(
        problem, attend(problem, moments=True), noise or NoiseModel.fp32_arithmetic(), torch.float32, 1, 1e-9
    )


def key_by_key(logits: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, float]:
    """What a kernel gives that adds one key after the other in fp32: out [1, 1, Dv] and natural LSE."""
    total, summed = torch.zeros(()), torch.zeros(value.shape[1])
    for weight, row in zip((logits - logits.max()).float().exp(), value, strict=True):
        total, summed = total + weight, summed + weight * row
    return (summed / total).to(torch.float64).view(1, 1, -1), total.double().log().item() + logits.max().item()


def allowance(budget: ErrorBudget) -> torch.Tensor:
    """What T1 allows more for the only row's own keys, [Dv]."""
    sums = [sums_allowance(budget, 0, 0, element) for element in range(budget.answer.out.shape[2])]
    return element_allowance(budget, 0, 0) + torch.tensor(sums, dtype=torch.float64)


def of_exact(budget: ErrorBudget) -> torch.Tensor:
    """T5's bound, [1, 1, Dv]."""
    return exact_bound(budget, torch.tensor([0])).unsqueeze(0)


def nearly_opposite_runs(keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of 0, and two constant runs of values that nearly cancel."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(1, DIM, generator=generator)
    second = -first * (1 + 1e-3 * torch.randn(1, DIM, generator=generator))
    half = keys // 2
    return torch.zeros(keys), torch.cat((first.expand(half, -1), second.expand(keys - half, -1)))


def behind_a_heavy_key(apart: float, heavy: float = 12.0, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Two thousand weights `apart`, by a share, and of one value, behind a key with a logit of `heavy`."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.cat((torch.tensor([heavy]), (torch.rand(2000, generator=generator) - 0.5) * apart))
    heaviest, value = torch.randn(2, 1, DIM, generator=generator)
    return logits, torch.cat((heaviest, value.expand(2000, -1)))


@pytest.mark.parametrize("keys", [292, 589, 2000])
def test_runs_of_nearly_opposite_values_are_rounded_to_one_side_before_they_cancel(keys: int) -> None:
    logits, value = nearly_opposite_runs(keys)
    budget = one_row(logits, value)
    error = key_by_key(logits, value)[0] - budget.answer.out

    for bound in (element_bound(budget), of_exact(budget)):
        assert (error.abs() > bound + element_allowance(budget, 0, 0)).any(), "the test shows nothing"
        assert (error.abs() <= bound + allowance(budget)).all()
    assert not row_error(budget, error).wrong


@pytest.mark.parametrize(
    ("apart", "heavy", "seed"), [(1e-3, 12.0, 3), (1e-2, 12.0, 3), (6e-2, 12.5, 2), (6e-2, 13.0, 7)]
)
def test_nearly_equal_weights_behind_a_heavy_key_lose_the_same_part_each(apart: float, heavy: float, seed: int) -> None:
    logits, value = behind_a_heavy_key(apart, heavy, seed)
    budget = one_row(logits, value)
    out, lse = key_by_key(logits, value)
    error = out - budget.answer.out

    assert (error.abs() > element_bound(budget) + element_allowance(budget, 0, 0)).any(), "the test shows nothing"
    assert (error.abs() <= element_bound(budget) + allowance(budget)).all()
    assert not row_error(budget, error).wrong
    assert abs(lse - budget.answer.lse.item()) <= lse_bound(budget).item() + lse_ties_allowance(budget, 0, 0)


def test_values_of_one_sign_before_values_of_the_other_make_large_partial_sums() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, value = torch.randn(8000, generator=generator), torch.randn(8000, DIM, generator=generator).abs()
    value[4000:] *= -1
    budget = one_row(logits, value)
    assert (allowance(budget) > 0.5 * element_bound(budget)).all()
    assert (key_by_key(logits, value)[0] - budget.answer.out).abs().max() < element_bound(budget).max()


@pytest.mark.parametrize("keys", [292, 589])
def test_a_dropped_or_slightly_wrong_key_among_opposite_runs_is_found(keys: int) -> None:
    logits, value = nearly_opposite_runs(keys)
    budget = one_row(logits, value)
    out = key_by_key(logits, value)[0]
    dropped = (out * keys - value[7].double()) / (keys - 1)
    wrong = out + 0.02 * value[7].double() / keys
    assert not row_error(budget, out - budget.answer.out).wrong
    for bound in (element_bound(budget), of_exact(budget)):
        for error in (dropped - budget.answer.out, wrong - budget.answer.out):
            assert error.abs().div(bound + allowance(budget)).max() > 1
    assert row_error(budget, dropped - budget.answer.out).wrong


@pytest.mark.parametrize("apart", [1e-3, 6e-2])
def test_a_dropped_key_behind_a_heavy_one_is_found(apart: float) -> None:
    logits, value = behind_a_heavy_key(apart, heavy=8.0)
    budget = one_row(logits, value)
    kept = torch.arange(len(logits)) != 1000
    error = key_by_key(logits[kept], value[kept])[0] - budget.answer.out
    assert (error.abs() > element_bound(budget) + allowance(budget)).any()


def test_terms_without_a_common_part_are_allowed_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    for keys in (100, 3000, 65536):
        terms = torch.randn(keys, generator=generator, dtype=torch.float64).exp() / keys
        terms *= torch.randn(keys, generator=generator, dtype=torch.float64)
        independent = STEP * float(partial_sums(terms).norm())
        assert one_sided_error(terms, 0.0, STEP, 6.0) < 0.3 * independent


def test_runs_of_equal_and_opposite_terms_lose_opposite_parts() -> None:
    up = torch.full((500,), 0.3, dtype=torch.float64)
    assert one_sided_error(torch.cat((up, up * 1.0001)), 0.0, STEP, 6.0) > 100 * STEP * 150
    assert one_sided_error(torch.cat((up, -up)), 0.0, STEP, 6.0) < 10 * STEP * 150


def test_an_addition_loses_at_most_its_term_and_nothing_is_lost_without_terms() -> None:
    tiny = torch.full((1000,), 1e-12, dtype=torch.float64)
    assert one_sided_error(tiny, 1.0, STEP, 6.0) <= 1e-9
    assert one_sided_error(torch.zeros(5, dtype=torch.float64), 1.0, STEP, 6.0) == 0


def test_equal_terms_added_to_a_larger_sum_are_rounded_to_the_same_side_each_time() -> None:
    # As a campaign met it: two keys take most of the weight, and each of many copies of another loses nearly half a
    # step of the sum. The model was calibrated on sums whose errors cancel.
    small, heavy = 400, 2
    logits = torch.tensor([0.0] * heavy + [log(1.49 * 2.0**-22)] * small, dtype=torch.float64)
    value = torch.ones(heavy + small, 1, 4)
    value[:heavy] = torch.tensor([1.0, -1.0, 1.25, 1.9])
    value[heavy:] = torch.tensor([0.3, 0.99, -0.99, 0.7])
    noise = NoiseModel(probabilities=2.0**-24, logits=2.0**-26, accumulate=2.0**-27)
    budget = one_row(logits, value[:, 0], noise)

    out, lse = key_by_key(logits, value[:, 0])
    error = out - budget.answer.out
    lse_error = abs(lse - budget.answer.lse.item())

    assert (error.abs() > element_bound(budget)).any(), "independent errors explain it: the test shows nothing"
    assert (error.abs() <= element_bound(budget) + allowance(budget)).all()
    assert not row_error(budget, error).wrong
    assert lse_error <= lse_bound(budget).item() + lse_ties_allowance(budget, 0, 0)


@pytest.mark.slow
def test_one_wrong_key_of_many_is_found_where_weights_are_equal_by_chance() -> None:
    """Of 65,536 weights 2,000 are equal terms of a sum, in pairs: as one group, they would hide 10 wrong keys."""
    generator = torch.Generator().manual_seed(0)
    logits, value = torch.randn(1 << 16, generator=generator), torch.randn(1 << 16, 8, generator=generator)
    budget = one_row(logits, value)
    key = int(logits.argsort()[len(logits) // 4])
    weight = (logits[key].double() - budget.answer.lse[0, 0]).exp()
    another = weight * (value[key - 1] - value[key]).double()
    dropped = weight / (1 - weight) * (budget.answer.out[0, 0] - value[key].double())

    for error in (another, dropped):
        assert (error.abs() > element_bound(budget)[0, 0] + allowance(budget)).any()
        assert row_error(budget, error.view(1, 1, -1)).wrong
