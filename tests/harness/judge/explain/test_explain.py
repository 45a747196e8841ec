"""A row that is wrong for a known reason has that among its claims, and noise has none."""

from collections.abc import Callable
from dataclasses import replace
from math import log

import pytest
import torch
from wrong_rows import Change, again, answering, claims_of, cut, right_row, said_of, swapped, two_requests

from attnfuzz.harness.judge.explain import candidates, keys, masks
from attnfuzz.harness.judge.explain.claim import Aspect
from attnfuzz.harness.judge.explain.wrong_row import WrongRow
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.problem import Problem


@pytest.fixture
def problem() -> Problem:
    return two_requests()


@pytest.fixture
def right(problem: Problem) -> WrongRow:
    return right_row(problem)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (cut(range(37, 38)), "as if key 37 were missing"),
        (again(range(37, 38)), "as if key 37 were counted twice"),
        (swapped(range(37, 38), range(11, 12)), "as if key 11 were read instead of key 37"),
        (cut(range(32, 48)), "as if keys 32 to 47 (an aligned block of 16) were missing"),
        (again(range(16, 24)), "as if keys 16 to 23 (an aligned block of 8) were counted twice"),
        (swapped(range(16, 32), range(48, 64)), "as if keys 48 to 63 were read instead of keys 16 to 31"),
        (cut(range(21, 37)), "as if keys 21 to 36 were missing"),
        (again(range(21, 37)), "as if keys 21 to 36 were counted twice"),
        (cut(range(7)), "as if the first 7 keys were missing"),
        (cut(range(64, 69)), "as if the last 5 keys were missing"),
    ],
)
@pytest.mark.parametrize("with_lse", [True, False])
def test_keys_that_are_missing_doubled_or_replaced_are_named(
    problem: Problem, change: Change, words: str, *, with_lse: bool
) -> None:
    assert words in said_of(problem, change, with_lse=with_lse)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("value", "key", "as if keys and values were exchanged"),
        ("key", "key", "as if the keys were the values, too"),
        ("value", "value", "as if the values were the keys, too"),
    ],
)
def test_keys_and_values_that_are_confused_are_named(problem: Problem, key: str, value: str, words: str) -> None:
    def confused(row: WrongRow) -> Problem:
        own = row.alone(row.seen)
        return replace(own, key=getattr(own, key), value=getattr(own, value))

    assert words in said_of(problem, confused)


def test_values_that_are_missing_beside_their_weights_are_named(right: WrongRow) -> None:
    weights, values = right.weights_and_values
    out = right.truth.out - weights[37] * values[37]
    assert "as if the values of key 37 were missing, but not the weights" in said(right, out)


def said(right: WrongRow, out: torch.Tensor) -> list[str]:
    return claims_of(replace(right, out=out.bfloat16(), lse=right.truth.lse))


def said_of_lse(right: WrongRow, lse: float) -> list[str]:
    return claims_of(replace(right, lse=lse), Aspect.LSE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: row.alone(row.seen[:-1]), "as if the causal limit were one lower: the row's own key is not seen"),
        (lambda row: row.alone(range(69)), "as if the causal limit were one higher: the next key is seen"),
        (lambda row: row.alone(range(70)), "as if there were no causal limit: all later keys are seen"),
    ],
)
def test_a_wrong_causal_limit_is_named(problem: Problem, change: Change, words: str) -> None:
    assert words in said_of(problem, change, token=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: row.alone(range(39, 69)), "as if the window were one key narrower"),
        (lambda row: row.alone(range(37, 69)), "as if the window were one key wider"),
        (lambda row: row.alone(range(69)), "as if the window were ignored"),
    ],
)
def test_a_wrong_window_is_named(problem: Problem, change: Change, words: str) -> None:
    assert words in said_of(replace(problem, window_left=30), change)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: replace(row, head=3).alone(row.seen), "as if it were the row of head 3"),
        (lambda row: other(row, token=2), "as if it were the row of its request's token 2"),
        (lambda row: other(row, token=3), "as if it were the row of request 1, token 0, head 2"),
        (lambda row: row.alone(row.seen, kv_head=0), "as if it read KV head 0 instead of 1"),
        (lambda row: row.alone(row.seen, request=1), "as if it read the keys of request 1"),
    ],
)
def test_the_row_or_the_keys_of_another_are_named(problem: Problem, change: Change, words: str) -> None:
    assert words in said_of(problem, change)


def other(row: WrongRow, token: int) -> Problem:
    there = replace(row, token=token)
    return there.alone(there.seen)


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (0.0, "as if all logits were 0"),
        (log(2), "as if the logits were multiplied by ln 2: exp2 without the change of base"),
        (1 / log(2), "as if the logits were multiplied by 1 / ln 2: the change of base twice"),
        (32**0.5, "as if 1 / sqrt(head_dim_qk) were not applied"),
        (32**-0.5, "as if 1 / sqrt(head_dim_qk) were applied twice"),
        (1.02, "as if the logits were multiplied by 1.02"),
    ],
)
def test_a_factor_of_the_logits_is_named(problem: Problem, factor: float, words: str) -> None:
    assert words in said_of(problem, lambda row: rescaled(row, factor))


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (32**-0.5, "as if the factor of the logits were always 1 / sqrt(head_dim_qk), whatever is passed"),
        (1 / 32, "as if the factor of the logits were 1 / head_dim_qk, whatever is passed"),
    ],
)
@pytest.mark.parametrize("soft_cap", [0.0, 5.0])
def test_a_factor_of_the_logits_that_is_ignored_is_named(
    problem: Problem, factor: float, words: str, soft_cap: float
) -> None:
    scaled = replace(problem, bmm1_scale=0.3, soft_cap=soft_cap)
    assert words in said_of(scaled, lambda row: replace(row.alone(row.seen), bmm1_scale=factor))


def rescaled(row: WrongRow, factor: float) -> Problem:
    alone = row.alone(row.seen)
    return replace(alone, bmm1_scale=alone.bmm1_scale * factor)


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (0.3, "as if the scale of V (0.3) were applied twice"),
        (1 / 0.3, "as if the scale of V (0.3) were not applied"),
        (2.0, "as if the output were doubled"),
        (-1.0, "as if the sign of the output were wrong"),
        (1.03, "as if the output were multiplied by 1.03"),
        (0.0, "as if no key were seen: the row is all zero"),
    ],
)
def test_a_factor_of_the_output_is_named(problem: Problem, factor: float, words: str) -> None:
    right = right_row(replace(problem, bmm2_scale=0.3))
    assert any(claim.startswith(words) for claim in said(right, right.truth.out * factor))


@pytest.mark.parametrize(
    ("sinks", "words"),
    [
        (None, "as if the sink were ignored"),
        (3.0 + log(2), "as if the sink were counted twice"),
        (1.0, "as if it had the sink of head 0"),
    ],
)
def test_a_wrong_sink_is_named(problem: Problem, sinks: float | None, words: str) -> None:
    def change(row: WrongRow) -> Problem:
        return replace(row.alone(row.seen), sinks=None if sinks is None else torch.tensor([sinks]))

    assert words in said_of(replace(problem, sinks=torch.tensor([1.0, 2.0, 3.0, 4.0])), change)


def test_a_missing_soft_cap_is_named(problem: Problem) -> None:
    capped = replace(problem, soft_cap=0.5)
    assert "as if the soft cap were not applied" in said_of(
        capped, lambda row: replace(row.alone(row.seen), soft_cap=0.0)
    )


def test_a_soft_cap_before_the_factor_of_the_logits_is_named(problem: Problem) -> None:
    capped = replace(problem, soft_cap=5.0)
    assert "as if the soft cap were applied before the factor of the logits" in said_of(
        capped, lambda row: replace(row.alone(row.seen), soft_cap=5.0 * problem.bmm1_scale)
    )


def test_a_window_of_no_keys_where_there_is_none_is_named(problem: Problem) -> None:
    words = "as if the row saw its own key alone: a window of 0 keys, where there is none (-1)"
    assert words in said_of(problem, lambda row: row.alone(row.seen[-1:]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lse: lse * log(2), "as if the LSE's base were e where base 2 is promised"),
        (lambda lse: lse / log(2), "as if the LSE's base were 2 where base e is promised"),
        (lambda lse: -lse, "as if the LSE were negated"),
    ],
)
def test_a_wrong_lse_beside_a_right_output_is_put_in_words(
    right: WrongRow, change: Callable[[float], float], words: str
) -> None:
    assert words in said_of_lse(right, change(right.truth.lse))


def test_a_right_lse_needs_no_words(right: WrongRow) -> None:
    assert said_of_lse(right, right.truth.lse) == []


def test_an_lse_with_heads_first_is_named(right: WrongRow) -> None:
    lse = right.answer.lse
    transposed = lse.T.reshape(lse.shape)[right.token, right.head].item()
    assert "as if the LSE were written as [heads, tokens]" in said_of_lse(right, transposed)


def test_an_lse_of_a_part_of_the_keys_is_named(right: WrongRow) -> None:
    weights, _ = right.weights_and_values
    lse = right.truth.lse + weights[:40].sum().log().item()
    assert "as if the LSE were that of the first 40 keys" in said_of_lse(right, lse)


@pytest.mark.parametrize(
    ("exponent", "how"),
    [
        (lambda a, b: (a - b) / log(2), "by exp of LSEs in base 2"),
        (lambda a, b: (a - b) * log(2), "by exp2 of LSEs in base e"),
        (lambda a, b: b - a, "with each other's weights"),
    ],
)
def test_parts_merged_with_wrong_weights_are_named(
    right: WrongRow, exponent: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], how: str
) -> None:
    weights, values = right.weights_and_values
    parts = weights[:23], weights[23:]
    first, second = (part.log().logsumexp(0) + right.truth.lse for part in parts)
    share = torch.sigmoid(exponent(first, second))
    outs = [part @ values[at] / part.sum() for part, at in zip(parts, (slice(23), slice(23, None)), strict=True)]
    words = f"as if the keys up to 22 and those from 23 on were merged {how}"
    assert words in said(right, share * outs[0] + (1 - share) * outs[1])


@pytest.mark.slow
@pytest.mark.parametrize(("size", "seeds"), [(0.01, 5), (0.3, 1), (10.0, 1)])
def test_noise_is_not_explained(right: WrongRow, size: float, seeds: int) -> None:
    """Small noise is the nearest to a prediction: of large noise, one row is as good as many."""
    for seed in range(seeds):
        noise = torch.randn(32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert said(right, right.truth.out + size * noise * right.truth.out.square().mean().sqrt()) == []


def test_keys_that_cannot_be_reported_apart_are_counted(problem: Problem) -> None:
    key, value = problem.key.clone(), problem.value.clone()
    for twin in (3, 50):
        key[twin], value[twin] = key[37], value[37]
    assert "as if key 3 were missing (2 others fit as well)" in said_of(
        replace(problem, key=key, value=value), cut(range(37, 38))
    )


def test_a_key_with_all_the_weight_is_named_when_it_is_missing(problem: Problem) -> None:
    key = problem.key.clone()
    key[37] = 20 * problem.query[1, 2]
    assert "as if key 37 were missing" in said_of(replace(problem, key=key), cut(range(37, 38)))


def test_one_key_of_65536_is_named_by_exact_counts() -> None:
    count = 65_536
    value = torch.randint(0, 2, (count, 1, 32), generator=torch.Generator().manual_seed(1)).mul_(2).sub_(1).bfloat16()
    probe = Problem(torch.zeros(1, 1, 8), torch.ones(count, 1, 8).bfloat16(), value, (1,), (count,), 1.0)
    right = right_row(probe, token=0, head=0, noise=NoiseModel.unknown_kernel())
    assert claims_of(answering(right, cut(range(40_000, 40_001)), with_lse=False)) == [
        "as if key 40000 were missing",
        "as if the values of key 40000 were missing, but not the weights",
    ]


def test_a_long_row_is_compared_with_other_rows_alone(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "LONG", 60)
    for module in (keys, masks):
        monkeypatch.setattr(module, "MOST_ELEMENTS", 60 * 32)
    assert "as if it were the row of head 3" in said_of(problem, lambda row: replace(row, head=3).alone(row.seen))
    assert said_of(problem, cut(range(37, 38)), with_lse=False) == []
    assert said_of(problem, lambda row: row.alone(row.seen, kv_head=0), with_lse=False) == []
