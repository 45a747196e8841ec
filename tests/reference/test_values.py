"""The value families."""

import itertools

import pytest
import torch

from attnfuzz.reference.attention import attend
from attnfuzz.reference.case import ValueFamily
from attnfuzz.reference.problem import Problem
from attnfuzz.reference.values import Operand, draw, draw_sinks

ALL = list(itertools.product(ValueFamily, Operand))
UNBOUNDED = {ValueFamily.EXTREME, ValueFamily.UNEVEN}
"""Families for writers, which convert them: with infinities, or with scales that follow from the values."""


def weights(family: ValueFamily, keys: int = 256, dim: int = 64) -> torch.Tensor:
    """Softmax weights [8, keys] of a decode over one-hot positions."""
    query = draw(family, Operand.QUERY, (1, 8, dim), seed=3, stream=0)
    key = draw(family, Operand.KEY, (keys, 1, dim), seed=3, stream=0)
    return attend(Problem(query, key, torch.eye(keys).unsqueeze(1), (1,), (keys,), dim**-0.5)).out[0]


@pytest.mark.parametrize(("family", "role"), ALL)
def test_a_tokens_values_do_not_depend_on_how_many_are_drawn(family: ValueFamily, role: Operand) -> None:
    longest = draw(family, role, (37, 3, 5), seed=1, stream=2)
    for tokens in (0, 1, 2, 7, 36):
        # As bits: the extreme family has NaN.
        few = draw(family, role, (tokens, 3, 5), seed=1, stream=2)
        assert torch.equal(few.view(torch.int32), longest[:tokens].view(torch.int32))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "role"), [each for each in ALL if each[0] not in UNBOUNDED])
def test_values_survive_a_cast_to_every_dtype(family: ValueFamily, role: Operand) -> None:
    values = draw(family, role, (2000, 2, 64), seed=5, stream=0)
    assert values.dtype == torch.float32
    assert values.abs().max() < 448
    for dtype in (torch.float8_e4m3fn, torch.float16, torch.bfloat16):
        assert torch.isfinite(values.to(dtype).float()).all()


def test_seed_stream_and_role_each_change_the_values() -> None:
    def first(role: Operand, seed: int, stream: int) -> float:
        return draw(ValueFamily.NORMAL, role, (1, 1, 1), seed=seed, stream=stream).item()

    seeds = (0, 1, 2**32, 2**63)
    drawn = {first(role, seed, stream) for role, seed, stream in itertools.product(Operand, seeds, range(3))}
    assert len(drawn) == len(Operand) * len(seeds) * 3
    assert first(Operand.KEY, 1, 2) == first(Operand.KEY, 1, 2)


def test_peaked_keys_take_most_of_the_weight_and_lie_at_page_edges() -> None:
    found = weights(ValueFamily.PEAKED)
    top = found.topk(8, dim=-1)
    assert top.values.sum(-1).mean() > 0.7
    assert (torch.isin(top.indices[:, 0] % 16, torch.tensor([0, 15]))).all()


def test_constant_values_are_the_output() -> None:
    query, key, value = (draw(ValueFamily.CONSTANT, role, (9, 2, 8), seed=1, stream=0) for role in Operand)
    answer = attend(Problem(query, key, value, (9,), (9,), 1.0))
    torch.testing.assert_close(answer.out, value.double(), rtol=1e-12, atol=0)


def test_one_hot_values_tell_token_and_head_and_have_like_weights() -> None:
    value = draw(ValueFamily.ONE_HOT, Operand.VALUE, (64, 4, 16), seed=1, stream=0)
    assert ((value != 0).sum(dim=-1) == 1).all()
    assert len({tuple(row.tolist()) for row in value[:, 0]}) == 64
    assert len({tuple(row.tolist()) for row in value[0]}) == 4
    assert torch.equal(value, value.to(torch.float8_e4m3fn).float())
    found = weights(ValueFamily.ONE_HOT)
    assert found.min() > 0.5 / 256
    assert found.max() < 2 / 256


def test_extreme_values_are_those_that_conversions_get_wrong() -> None:
    values = draw(ValueFamily.EXTREME, Operand.KEY, (200, 2, 64), seed=2, stream=0)
    assert values.isnan().any()
    assert values.isinf().any()
    assert (values.abs() > 448).any()
    assert ((values == 0) & values.signbit()).any()
    assert (values.to(torch.float16).abs() == 2.0**-24).any()


def test_large_logits_reach_several_hundred() -> None:
    query, key = (
        draw(ValueFamily.LARGE_LOGITS, role, (50, 1, 128), seed=2, stream=0).squeeze(1) for role in list(Operand)[:2]
    )
    largest = (query @ key.T).abs().max() / 128**0.5
    assert 300 < largest < 1500


def test_zeros_make_the_output_a_count() -> None:
    query, key, value = (draw(ValueFamily.ZEROS, role, (8, 1, 4), seed=2, stream=0) for role in Operand)
    assert not query.any()
    assert set(value.flatten().tolist()) == {-1.0, 1.0}
    answer = attend(Problem(query, key, value, (8,), (8,), 1.0))
    assert torch.equal((answer.out[-1] * 8).round(), value.double().sum(0))


@pytest.mark.parametrize("dim", [8, 16, 64, 128, 576])
def test_probes_have_exact_weights_in_every_row(dim: int) -> None:
    query = draw(ValueFamily.PROBE, Operand.QUERY, (6, 8, dim), seed=3, stream=0)
    key, value = (
        draw(ValueFamily.PROBE, role, (200, 2, dim), seed=3, stream=0) for role in (Operand.KEY, Operand.VALUE)
    )
    assert set(key.flatten().tolist()) == set(value.flatten().tolist()) == {-1.0, 1.0}
    answer = attend(Problem(query, key, value, (6,), (200,), 0.37 * dim**-0.5), moments=True)
    assert answer.moments is not None
    assert answer.moments.gap.max() <= 2.0**-24
    zero = (query == 0).all(dim=-1)
    assert zero.sum() == zero.numel() / 2
    assert (zero[:, 0] != zero[:, 1]).all()
    counts = answer.out * answer.visible.view(-1, 1, 1)
    torch.testing.assert_close(counts[zero], counts[zero].round())
    if dim >= 64:
        torch.testing.assert_close(answer.out[~zero].abs(), torch.ones_like(answer.out[~zero]), rtol=1e-6, atol=0)


def test_one_head_has_both_kinds_of_probe() -> None:
    first = [draw(ValueFamily.PROBE, Operand.QUERY, (1, 1, 8), seed=0, stream=stream) for stream in range(20)]
    assert {bool(query.any()) for query in first} == {False, True}


def test_a_probes_counts_stay_small_over_any_run_of_keys() -> None:
    value = draw(ValueFamily.PROBE, Operand.VALUE, (5000, 1, 64), seed=0, stream=0)[:, 0, ::2]
    sums = torch.cat((torch.zeros(1, 32), value.cumsum(0)))
    reach = sums.amax(0) - sums.amin(0)
    assert (reach <= torch.tensor([2.0, 32.0, 256.0]).repeat(11)[:32]).all()


def test_weights_of_discrete_values_take_few_values_in_all_rows() -> None:
    found = weights(ValueFamily.DISCRETE, keys=512)
    # 64 signs add up to even numbers, times 1 / 8.
    steps = (found / found.amax(dim=-1, keepdim=True)).log() * 4
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-6)


def test_faint_weights_are_alone_in_every_second_element() -> None:
    found = weights(ValueFamily.FAINT) / weights(ValueFamily.FAINT).amax(dim=-1, keepdim=True)
    values = draw(ValueFamily.FAINT, Operand.VALUE, (256, 1, 64), seed=3, stream=0)[:, 0]
    near, far = found[:, ::4], found[:, [at for at in range(256) if at % 4]]
    assert near.min() > 1e-14
    assert 0 < far.min() < 2.0**-149 < 2.0**-126 < far.max() < 1e-19
    assert not values[::4, 1::2].any()
    assert values[1::4].all(dim=-1).any()


def test_stagnant_values_are_runs_that_nearly_cancel_some_behind_a_heavy_key() -> None:
    heavy, equal = set(), set()
    for stream in range(40):
        query, key, value = (draw(ValueFamily.STAGNANT, role, (600, 1, 64), seed=3, stream=stream) for role in Operand)
        logits = (query[0] @ key[:, 0].T).flatten() / 8
        heavy.add(bool(logits[0] > 3))
        assert logits[1:].abs().max() < 0.04
        equal.add(bool((logits[1:] == logits[1]).all()))
        sizes = value[:, 0].abs()
        assert (sizes / sizes[0] - 1).abs().max() < 0.2
        assert (value[:, 0].diff(dim=0) == 0).all(dim=-1).sum() > 550
        assert not (value[:16] - value[0]).any()
    assert heavy == equal == {False, True}


def test_sinks_are_extreme_where_the_weights_are() -> None:
    for family in ValueFamily:
        sinks = draw_sinks(family, 256, seed=1, stream=9)
        assert sinks.shape == (256,)
        extreme = family in (ValueFamily.DISCRETE, ValueFamily.FAINT)
        assert ({-torch.inf, 86.0, -86.0} <= set(sinks.tolist())) == extreme
        assert bool(sinks.isfinite().all()) != extreme


def test_a_shape_without_three_axes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"give \[tokens, heads, dim\]"):
        draw(ValueFamily.NORMAL, Operand.KEY, (4, 4), seed=0, stream=0)
