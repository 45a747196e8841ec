"""Merges of attention states: contents that must not matter, and wrong merges that they reveal."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_cases import drawn, narrowest, run

from attnfuzz.kernels.gpu.direct import states
from attnfuzz.kernels.gpu.direct.parts import StatesPart, excluded, states_of, with_rounded_lses
from attnfuzz.kernels.gpu.states import MERGE_STATE_IN_PLACE
from attnfuzz.kernels.interface.backend import Op, Unsupported
from attnfuzz.reference.arguments import ArgumentForm
from attnfuzz.reference.case import Case, Mode

pytest.importorskip("flashinfer", reason="calls are bound to the installed signatures")
import direct_on_cpu
from wrapper_backends import OnCpu, on_cpu_as

INF = float("inf")
NAME = f"{direct_on_cpu.__file__}:CASCADE_MERGE"
Merge = Callable[..., None]
Call = dict[str, Any]


def _other(call: Call) -> tuple[str, str]:
    """The names of the values and LSEs of a state that is only read: the second one, or all of them."""
    return next(names for names in (("v_other", "s_other"), ("v_b", "s_b"), ("v", "s")) if names[0] in call)


def _adding(right: Merge, call: Call, weight: float) -> None:
    """Merge, and add the values of states without keys with a small weight."""
    values, lse = _other(call)
    added = weight * call[values].float().where(call[lse].isneginf().unsqueeze(-1), 0.0)
    right(**call)
    out = call["out"] if "out" in call else call["v"]
    out.copy_(out.float() + (added.sum(dim=1) if added.dim() == 4 else added))


def multiplies_by_a_weight_of_0(right: Merge, call: Call) -> None:
    _adding(right, call, 0.0)


def has_a_least_weight(right: Merge, call: Call) -> None:
    _adding(right, call, 2.0**-20)


def multiplies_by_the_mask(right: Merge, call: Call) -> None:
    right(**call)
    if (mask := call.get("mask")) is not None:
        call["v"].add_(call["v_other"] * 0.0 * ~mask[:, None, None])


def takes_the_first_lse_from_head_5_on(right: Merge, call: Call) -> None:
    _, lse = _other(call)
    changed = call[lse].clone()
    changed[..., 5:] = changed[..., :1]
    right(**call | {lse: changed})


def reads_lses_of_16_bits_as_float32(right: Merge, call: Call) -> None:
    _, lse = _other(call)
    given = call[lse]
    if given.itemsize == 2:
        call = call | {lse: given.flatten().repeat(2).view(torch.float32)[: given.numel()].view(given.shape)}
    right(**call)


def planted(defect: Callable[[Merge, Call], None]) -> OnCpu:
    """The backend of merges, with a defect in each of its three ops."""

    def wrong(op: Op, right: Merge) -> Op:
        return replace(op, function=lambda **call: defect(right, call))

    ops = {
        "merge_state": wrong(states.MERGE_STATE, direct_on_cpu._merge_state),
        "merge_states": wrong(states.MERGE_STATES, direct_on_cpu._merge_states),
        "merge_in_place": wrong(MERGE_STATE_IN_PLACE, direct_on_cpu._merge_in_place),
    }
    return on_cpu_as(states.CASCADE_MERGE, type("Planted", (states.CascadeSession,), ops))


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return drawn(NAME, 150)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defect", "suits"),
    [
        (multiplies_by_a_weight_of_0, lambda case: ArgumentForm.STATES_NAN in case.arguments),
        (has_a_least_weight, lambda case: not case.arguments),
        (multiplies_by_the_mask, lambda case: case.steps[0].mode is Mode.TARGET_VERIFY and not case.arguments),
        (takes_the_first_lse_from_head_5_on, lambda case: case.geometry.q_heads > 5 and not case.arguments),
        (reads_lses_of_16_bits_as_float32, lambda case: ArgumentForm.STATE_LSES_16_BITS in case.arguments),
    ],
)
def test_drawn_cases_show_wrong_merges_and_pass_right_ones(
    defect: Callable[[Merge, Call], None], suits: Callable[[Case], bool], cases: list[Case]
) -> None:
    backend = planted(defect)
    suitable = narrowest(list(filter(suits, cases)), 4)
    assert any(run(case, backend).observations for case in suitable)
    assert not any(run(case, NAME).observations for case in suitable)


def part(out: float, lse: float) -> StatesPart:
    made = StatesPart.empty(1, 1, 2)
    made.out.fill_(out)
    made.lse.fill_(lse)
    return made


def test_outputs_of_weight_0_are_as_large_as_can_be_unless_no_part_has_keys() -> None:
    largest = torch.finfo(torch.float16).max
    first, second = states_of([part(0, -INF), part(3, 1)], torch.float16)
    assert first.out.tolist() == [[[largest, -largest]]]
    assert first.lse.isneginf().all()
    assert second.out.eq(3).all()
    assert all(state.out.eq(0).all() for state in states_of([part(0, -INF), part(0, -INF)], torch.float16))


def test_rows_that_a_mask_excludes_are_nan() -> None:
    (state, _) = states_of([part(1, 2), part(3, 1)], torch.float32)
    assert excluded(state, torch.tensor([True])).out.eq(1).all()
    gone = excluded(state, torch.tensor([False]))
    assert gone.out.isnan().all()
    assert gone.lse.isnan().all()


def test_rounded_lses_keep_the_merged_output_and_return_the_lse_error() -> None:
    parts = [part(1.5, 7.7771), part(-2.25, 9.4443), part(0, -INF)]
    made, lacking = with_rounded_lses(parts, torch.bfloat16)

    def merged(some: list[StatesPart]) -> tuple[float, float]:
        total = sum(2.0 ** each.lse.item() for each in some)
        return sum(2.0 ** each.lse.item() * each.out[0, 0, 0].item() for each in some) / total, total

    (out, total), (same, rounded) = merged(parts), merged(made)
    assert all(each.lse.to(torch.bfloat16).double().equal(each.lse) for each in made)
    assert same == pytest.approx(out, rel=1e-12)
    assert rounded * 2 ** lacking.item() == pytest.approx(total, rel=1e-12)


def test_lses_that_16_bits_do_not_hold_are_unsupported() -> None:
    with pytest.raises(Unsupported, match="LSEs that exceed"):
        with_rounded_lses([part(1, 1e5), part(1, 1)], torch.float16)
