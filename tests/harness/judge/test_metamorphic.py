"""T6: two runs are compared bit for bit or within the sum of their bounds, row by row, whatever their order."""

from dataclasses import replace
from functools import partial
from math import log
from typing import Any

import pytest
import torch

from attnfuzz.harness.judge.element_bound import element_bound
from attnfuzz.harness.judge.evidence import Evidence
from attnfuzz.harness.judge.judged_again import element_allowance, sums_allowance
from attnfuzz.harness.judge.lse_bound import lse_bound
from attnfuzz.harness.judge.metamorphic import StepComparison, compare
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.kernels.interface.backend import Output
from attnfuzz.reference.case import ValueFamily
from attnfuzz.reference.contract import Contract, Holds, LseBase
from attnfuzz.reference.relation import Relation

BITWISE, BOUNDED = Relation.PAGES_RELABELLED, Relation.PADDING_ENLARGED
CONTRACT = Contract(lse=LseBase.TWO)


def first_run(layer: Any, output: Output, contract: Contract = CONTRACT) -> Evidence:
    judgement = layer.judged(output, contract, keep=True)
    assert judgement.observations == ()
    kept: Evidence | None = judgement.kept
    assert kept is not None
    return kept


def compared(
    layer: Any,
    output: Output,
    relation: Relation,
    *,
    first: Evidence | None = None,
    positions: tuple[int, ...] | None = None,
    contract: Contract = CONTRACT,
    strict: bool = False,
    tiers: frozenset[Tier] = frozenset(Tier),
) -> StepComparison:
    """`output` beside the first run of `layer`."""
    return compare(
        first or first_run(layer, layer.run(), contract),
        output,
        relation=relation,
        positions=positions or range(len(layer.lengths)),
        geometry=layer.geometry,
        contract=contract,
        report=partial(Observation, step=3, mode="decode", kernel="simulated"),
        strict=strict,
        tiers=tiers,
    )


@pytest.mark.parametrize("relation", Relation)
def test_the_same_results_pass(layer: Any, relation: Relation) -> None:
    assert compared(layer, layer.run(), relation, strict=True).observations == ()


def test_a_bit_is_seen_where_bits_are_promised_and_passes_where_they_are_not(layer: Any) -> None:
    output = layer.run()
    output.out.view(torch.int16)[2, 5, 17] ^= 1
    (found,) = compared(layer, output, BITWISE).observations
    assert (found.kind, found.place, found.tier, found.margin) == (Kind.METAMORPHIC_MISMATCH, "out", "T6", None)
    assert found.message.startswith("request 2 (q_len 2, kv_len 33), token 0, head 5, element 17: ")
    assert found.message.endswith("where the bits must be the same; 1 of 40 rows differ")
    bounded = compared(layer, output, BOUNDED)
    assert bounded.observations == ()
    assert bounded.margin is not None
    assert 0 < bounded.margin <= 1


@pytest.mark.parametrize(
    ("relation", "kind"),
    [
        (Relation.SAME_CALL, Kind.NONDETERMINISTIC),
        (Relation.REPLAY_AS_EAGER, Kind.REPLAY_DIVERGED),
        (Relation.SPLITS_CHANGED, Kind.METAMORPHIC_MISMATCH),
    ],
)
def test_each_relation_has_its_kind(layer: Any, relation: Relation, kind: Kind) -> None:
    output = layer.run()
    output.out[0, 0, 0] += 1
    assert [found.kind for found in compared(layer, output, relation).observations] == [kind]


@pytest.mark.parametrize(("factor", "fails"), [(0.999, False), (1.001, True)])
@pytest.mark.parametrize("roundings", [1, 3])
def test_elements_may_differ_by_the_sum_of_their_bounds(
    layer: Any, factor: float, roundings: int, *, fails: bool
) -> None:
    layer = replace(layer, dtype=torch.float32)
    first = first_run(layer, layer.run())
    budgets = [replace(first.budget, roundings=times) for times in (1, roundings)]
    bounds = [element_bound(each)[3, 2, 9] + element_allowance(each, 3, 2)[9] for each in budgets]
    other = replace(layer.run(), roundings=roundings)
    first.out[3, 2, 9] = 0.0
    other.out[3, 2, 9] = factor * sum(bounds)
    result = compared(layer, other, BOUNDED, first=first)
    assert result.margin == pytest.approx(factor, rel=1e-4)
    assert bool(result.observations) is fails


@pytest.mark.parametrize(("factor", "fails"), [(0.999, False), (1.001, True)])
def test_the_allowance_for_the_keys_of_a_row_counts_for_each_run(layer: Any, factor: float, *, fails: bool) -> None:
    layer = replace(layer, dtype=torch.float32, family=ValueFamily.PROBE, lengths=((1, 512),))
    first = first_run(layer, layer.run())
    budgets = [replace(first.budget, roundings=roundings) for roundings in (1, 3)]
    # A head whose weights are equal, and the element whose parts are largest.
    head = int((budgets[0].moments.gap[0] == 0).nonzero()[0])
    more = [element_allowance(budget, 0, head) for budget in budgets]
    element = int((more[1] - more[0]).argmax())
    assert more[1][element] > 1.2 * more[0][element]
    bounds = [element_bound(budget)[0, head, element] for budget in budgets]
    sums = sums_allowance(budgets[0], 0, head, element)
    allowed = sum(bound + own[element] + sums for bound, own in zip(bounds, more, strict=True))
    other = replace(layer.run(), roundings=3)
    first.out[0, head, element] = 0.0
    other.out[0, head, element] = factor * allowed
    assert bool(compared(layer, other, BOUNDED, first=first).observations) is fails


@pytest.mark.parametrize(("factor", "fails"), [(0.99, False), (1.01, True)])
def test_lses_may_differ_by_the_sum_of_their_bounds(layer: Any, factor: float, *, fails: bool) -> None:
    first = first_run(layer, layer.run())
    other = layer.run()
    assert other.lse is not None
    assert first.lse is not None
    first.lse[1, 3] = other.lse[1, 3] = 0.0
    other.lse[1, 3] = 2 * factor * lse_bound(first.budget)[1, 3] / log(2)
    result = compared(layer, other, BOUNDED, first=first)
    assert result.margin == pytest.approx(factor, rel=1e-3)
    assert [found.place for found in result.observations] == ["lse"] * fails


def test_a_nan_in_one_run_alone_is_no_number(layer: Any) -> None:
    output = layer.run()
    output.out[4, 7, 0] = torch.nan
    (found,) = compared(layer, output, BOUNDED).observations
    assert found.margin is None
    assert "nan instead of" in found.message
    assert "not both numbers; 1 of 40 rows differ" in found.message


def test_requests_are_found_where_they_went(layer: Any) -> None:
    moved = replace(layer, lengths=layer.lengths[::-1])
    output = layer.run()
    order = [4, 2, 3, 1, 0]
    assert output.lse is not None
    permuted = replace(output, out=output.out[order], lse=output.lse[order], attended=moved.run().attended)
    assert compared(layer, permuted, Relation.BATCH_PERMUTED, positions=(3, 2, 1, 0)).observations == ()
    assert compared(layer, permuted, Relation.BATCH_PERMUTED, positions=(0, 1, 2, 3)).observations != ()


def test_rows_without_keys_are_compared_unless_they_may_hold_anything(layer: Any) -> None:
    layer = replace(layer, lengths=((1, 9), (1, 0)))
    output = layer.run()
    output.out[1] = 7.0
    anything = Contract(lse=LseBase.TWO, empty_rows=Holds.ANYTHING, sources={"empty_rows": "a header"})
    for relation in (BITWISE, BOUNDED):
        assert compared(layer, output, relation, contract=anything).observations == ()
        assert [found.place for found in compared(layer, output, relation).observations] == ["out"]


def test_a_difference_that_only_the_strict_contract_forbids_is_a_gap(layer: Any) -> None:
    output = layer.run()
    output.out.view(torch.int16)[2, 5, 17] ^= 1
    (gap,) = compared(layer, output, BOUNDED, strict=True).observations
    assert gap.gap
    assert compared(layer, output, Relation.SPLITS_CHANGED, strict=True).observations == ()


def test_padded_rows_of_the_related_run_keep_the_exact_clause(layer: Any) -> None:
    output = layer.run()
    assert output.lse is not None
    rows = torch.full((1, 8, 64), torch.nan, dtype=output.out.dtype)
    output = replace(output, out=torch.cat([output.out, rows]), lse=torch.cat([output.lse, torch.zeros(1, 8)]))
    (found,) = compared(layer, output, BOUNDED).observations
    assert (found.kind, found.tier) == (Kind.NOT_FINITE, "T0")
    assert compared(layer, output, BOUNDED, tiers=frozenset({Tier.T6})).observations == ()


def test_a_related_output_of_another_shape_is_not_compared(layer: Any) -> None:
    output = layer.run()
    (found,) = compared(layer, replace(output, out=output.out[:, :, :32]), BITWISE).observations
    assert (found.kind, found.tier) == (Kind.OUTPUT_MISMATCH, "T0")
