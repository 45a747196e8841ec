"""T3 on kernels that add key by key in fp32: rows that are alike lose the same part of their sums."""

from functools import cache

import pytest
import torch

from attnfuzz.harness.judge import common_error, recurring_sums
from attnfuzz.harness.judge.common_error import Signs, allowed_score, common_errors, common_lse_errors
from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.recurring_sums import recurring_sums_error
from attnfuzz.reference.attention import attend
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.problem import Problem

pytestmark = pytest.mark.slow
"""Many rows are judged."""

QUERIES, HEADS, DIM = 32, 8, 16


def budget_of(logits: torch.Tensor, value: torch.Tensor) -> ErrorBudget:
    """Causal queries that all have these logits [k, Hq], one KV head for each head of `value` [k, Hq, Dv]; fp32."""
    key = logits.unsqueeze(-1)
    query = torch.ones(QUERIES, HEADS, 1)
    problem = Problem(query, key, value, (QUERIES,), (len(key),), 1.0, causal=True)
    return ErrorBudget(problem, attend(problem, moments=True), NoiseModel.fp32_arithmetic(), torch.float32, 1, 1e-4)


def key_by_key(logits: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a kernel gives that adds one key after the other in fp32: out and natural LSE."""
    total, summed = torch.zeros(HEADS, 1), torch.zeros(HEADS, DIM)
    largest = logits.amax(dim=0)
    outs, lses = [], []
    for place, (weight, row) in enumerate(zip((logits - largest).exp().unsqueeze(-1), value, strict=True)):
        total, summed = total + weight, summed + weight * row
        if place >= len(logits) - QUERIES:
            outs.append(summed / total)
            lses.append(total.double().log().squeeze(-1) + largest)
    return torch.stack(outs).double(), torch.stack(lses)


def opposite_values(keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Nearly equal logits, and two runs of nearly opposite values in each head."""
    generator = torch.Generator().manual_seed(1)
    logits = (torch.rand(keys, HEADS, generator=generator) - 0.5) * 1e-3
    value = torch.randn(1, HEADS, DIM, generator=generator).expand(keys, -1, -1).clone()
    value[keys // 2 :] *= -1.001
    return logits, value


def behind_a_heavy_key(keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Nearly equal logits behind one of 12."""
    logits, value = opposite_values(keys)
    logits[0] = 12
    return logits, value


@cache
def heavy_lse() -> tuple[ErrorBudget, torch.Tensor]:
    """The budget of 10,000 keys behind a heavy one, and the LSE that adding key by key gives."""
    logits, value = behind_a_heavy_key(10_000)
    return budget_of(logits, value), key_by_key(logits, value)[1]


def lse_signs(budget: ErrorBudget, error: torch.Tensor) -> Signs:
    return common_lse_errors(budget, error, torch.ones(QUERIES, HEADS, dtype=torch.bool))[0]


def out_signs(budget: ErrorBudget, error: torch.Tensor) -> tuple[Signs, Signs]:
    return common_errors(budget, error, torch.ones(QUERIES, dtype=torch.bool))[:2]


def test_rows_that_lose_the_same_part_of_their_denominators_are_no_common_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget, lse = heavy_lse()
    signs = lse_signs(budget, lse - budget.answer.lse)
    assert signs.margin(budget) <= 1
    monkeypatch.setattr(common_error, "recurring_sums_error", lambda *_: 0.0)
    assert signs.margin(budget) > 2, "the test shows nothing"


def test_rows_that_lose_the_same_part_of_their_products_are_no_common_error(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, value = opposite_values(3000)
    budget = budget_of(logits, value)
    signs = out_signs(budget, key_by_key(logits, value)[0] - budget.answer.out)
    assert all(each.margin(budget) <= 1 for each in signs)
    monkeypatch.setattr(common_error, "recurring_sums_error", lambda *_: 0.0)
    assert any(each.margin(budget) > 1 for each in signs), "the test shows nothing"


def test_a_common_error_shows_beside_sums_of_equal_terms() -> None:
    budget, lse = heavy_lse()
    assert lse_signs(budget, lse + 3e-3 - budget.answer.lse).margin(budget) > 1


def test_sums_of_terms_that_differ_add_less_than_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    # A smaller sample shows the same, in a sixth of the time.
    monkeypatch.setattr(recurring_sums, "_MOST_ROWS", 16)
    monkeypatch.setattr(recurring_sums, "_MOST_ELEMENTS", 8)
    generator = torch.Generator().manual_seed(0)
    keys = 5_000
    query, key, value = (torch.randn(n, HEADS, DIM, generator=generator) for n in (QUERIES, keys, keys))
    problem = Problem(query, key, value, (QUERIES,), (keys,), DIM**-0.5, causal=True)
    answer = attend(problem, moments=True)
    budget = ErrorBudget(problem, answer, NoiseModel.fp32_arithmetic(), torch.float32, 1, 1e-4)
    allowed = allowed_score(budget)
    for signs in (lse_signs(budget, answer.lse * 1e-3), *out_signs(budget, answer.out * 1e-3)):
        assert recurring_sums_error(budget, signs.statistic(), allowed) < 0.5 * allowed * len(signs.off) ** 0.5
