"""Rows that are wrong in a known way, for tests of explanations."""

from collections.abc import Callable
from dataclasses import replace

import torch

from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.explain.candidates import candidates
from attnfuzz.harness.judge.explain.claim import Aspect
from attnfuzz.harness.judge.explain.wrong_row import WrongRow, without
from attnfuzz.reference.attention import attend
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.problem import Problem

Change = Callable[[WrongRow], Problem]
"""What a row is given the answer to, instead of its own problem."""


def two_requests(seed: int = 5, more: int = 0) -> Problem:
    """Two requests of 3 and 1 queries with 70 and 90 keys in bf16, or so many more each.

    There are 4 query heads on 2 KV heads of dimension 32.
    """
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(tokens, heads, 32, generator=generator).bfloat16()
        for tokens, heads in ((4, 4), (160 + 2 * more, 2), (160 + 2 * more, 2))
    )
    return Problem(query, key, value, (3, 1), (70 + more, 90 + more), 32**-0.5)


def right_row(problem: Problem, *, token: int = 1, head: int = 2, noise: NoiseModel | None = None) -> WrongRow:
    """A row that holds its answer, rounded to bf16."""
    answer = attend(problem, moments=True)
    budget = ErrorBudget(problem, answer, noise or NoiseModel.fp32_arithmetic(), torch.bfloat16, 1, 1e-9)
    out, lse = answer.out[token, head].bfloat16(), answer.lse[token, head].item()
    return WrongRow(problem, answer, budget, token, head, out, lse)


def answering(row: WrongRow, change: Change, *, with_lse: bool = True) -> WrongRow:
    """The row with the answer to another problem."""
    answer = attend(change(row))
    return replace(row, out=answer.out[0, 0].bfloat16(), lse=answer.lse[0, 0].item() if with_lse else None)


def claims_of(row: WrongRow, aspect: Aspect = Aspect.OUT) -> list[str]:
    """The words of each claim that explains a row."""
    return [claim.words for claim in candidates(row, aspect, out_failed=aspect is Aspect.OUT)]


def said_of(problem: Problem, change: Change, *, token: int = 1, with_lse: bool = True) -> list[str]:
    """The claims that explain a row that holds the answer to another problem."""
    return claims_of(answering(right_row(problem, token=token), change, with_lse=with_lse))


def cut(keys: range) -> Change:
    """Without these keys."""
    return lambda row: row.with_keys(without(row.seen, keys))


def again(keys: range) -> Change:
    """With these keys a second time."""
    return lambda row: row.with_keys([row.seen, keys])


def swapped(gone: range, read: range) -> Change:
    """With other keys instead of these."""
    return lambda row: row.with_keys([*without(row.seen, gone), read])
