"""The results that a recurrence's arguments ask for: a right kernel agrees with them, whatever its caller meant."""

from typing import Any

import pytest
import torch

from attnfuzz.kernels.recurrent.asked import NamesNoState, asked_states
from attnfuzz.kernels.recurrent.native import NATIVE_STATES
from attnfuzz.reference.recurrent.case import StateMode

(CONVOLUTION,) = (each for each in NATIVE_STATES if each.name == "native:causal_conv1d")
CHANNELS, WIDTH = 6, 4


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def arguments(mode: StateMode, *, activated: bool = True) -> dict[str, Any]:
    """Two requests and a padding row, on slots with room for two drafts more than a convolution keeps."""
    lengths = {StateMode.PREFILL: (2, 5, 0), StateMode.DECODE: (1, 1, 1), StateMode.VERIFY: (3, 2, 0)}[mode]
    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    more = {"has_initial_state": torch.tensor([True, False, False])}
    if mode is StateMode.VERIFY:
        more = {"num_accepted": torch.tensor([2, 1, 1], dtype=torch.int32)}
    return {
        "x": numbers(int(starts[-1]), CHANNELS),
        "weight": numbers(CHANNELS, WIDTH),
        "bias": numbers(CHANNELS),
        "activated": activated,
        "state": numbers(5, CHANNELS, WIDTH + 1),
        "slots": torch.tensor([3, 1, -1], dtype=torch.int32),
        "cu_seqlens": starts,
        "out": torch.zeros(int(starts[-1]), CHANNELS),
        **more,
    }


def off(given: dict[str, Any], mode: StateMode) -> dict[str, bool]:
    """Run the kernel: whether each result differs by more than its bound from the one that was asked for."""
    op = CONVOLUTION.by_mode[mode]
    due = asked_states(op.name, given, alpha=1e-6)
    op.function(**given)
    return {each.name: bool(((given[each.name] - each.right).abs() > each.bound).any()) for each in due}


@pytest.mark.parametrize("mode", list(StateMode))
@pytest.mark.parametrize("activated", [False, True])
def test_a_right_convolution_follows_its_arguments(mode: StateMode, *, activated: bool) -> None:
    assert off(arguments(mode, activated=activated), mode) == {"out": False, "state": False}


@pytest.mark.parametrize("mode", list(StateMode))
def test_outputs_and_kept_inputs_of_another_slot_do_not(mode: StateMode) -> None:
    given = arguments(mode)
    op = CONVOLUTION.by_mode[mode]
    due = asked_states(op.name, {**given, "slots": given["slots"].where(given["slots"] != 3, torch.tensor(4))}, 1e-6)
    op.function(**given)
    assert [each.name for each in due if ((given[each.name] - each.right).abs() > each.bound).any()] == ["out", "state"]


def test_a_convolution_that_reads_inputs_that_nothing_wrote_names_no_state() -> None:
    given = arguments(StateMode.DECODE)
    given["state"][3, :, 0] = torch.nan
    with pytest.raises(NamesNoState, match="row 0 reads the state in slot 3, which is not finite"):
        asked_states(CONVOLUTION.by_mode[StateMode.DECODE].name, given, 1e-6)
    outside = {**arguments(StateMode.DECODE), "slots": torch.tensor([3, 5, -1], dtype=torch.int32)}
    with pytest.raises(NamesNoState, match="row 1 has slot 5, and the pool has 5"):
        asked_states(CONVOLUTION.by_mode[StateMode.DECODE].name, outside, 1e-6)


def test_rows_that_share_a_slot_name_no_state_unless_it_is_the_dummy() -> None:
    given = arguments(StateMode.PREFILL)
    given["slots"] = torch.tensor([3, 3, -1], dtype=torch.int32)
    with pytest.raises(NamesNoState, match="rows 0 and 1 have slot 3"):
        asked_states(CONVOLUTION.by_mode[StateMode.PREFILL].name, given, alpha=1e-6)
    given["slots"].fill_(0)
    asked_states(CONVOLUTION.by_mode[StateMode.PREFILL].name, given, alpha=1e-6)
