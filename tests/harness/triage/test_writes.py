"""Whose fault a failure in a KV cache is: by the slots, values and rotation that a write names, or by other kernels."""

from collections.abc import Callable

import pytest
import torch

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.triage.run import blamed_for
from attnfuzz.harness.triage.writes import named_slots
from attnfuzz.harness.verdict.blame import Blame
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Case


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defect", "fault", "words"),
    [
        ("written_scale_inverted", Blame.KERNEL, "gets the slots and values of the new tokens"),
        ("reserved_slot_written", Blame.KERNEL, "gets the slots and values of the new tokens"),
        ("rope_sine_negated", Blame.KERNEL, "gets the slots and values of the new tokens"),
        ("gather_stops_at_a_page_edge", Blame.KERNEL, "gets the slots and values of the new tokens"),
        ("moves_in_fours", Blame.KERNEL, "gets the slots and values of the new tokens"),
        ("write_offset_in_int32", Blame.KERNEL, "gets the slots and values of the new tokens"),
        ("slots_of_first_replay", Blame.CALLER, "instead of"),
        ("scales_of_k_and_v_swapped", Blame.CALLER, "k_scale is"),
        ("rope_shift_ignored", Blame.CALLER, "rope_positions has"),
        ("yarn_magnitude_left_out", Blame.CALLER, "cos_sin_cache does not hold"),
        ("tombstone_times_page_size", Blame.CALLER, "outside of the"),
    ],
)
def test_a_wrong_write_is_the_fault_of_the_kernel_if_its_call_is_right(
    runner: Runner, pinned: Callable[[str], AnyCase], defect: str, fault: Blame, words: str
) -> None:
    case = pinned(defect)
    assert isinstance(case, Case)
    found = blamed_for(case, runner.verdict(case).failures[0], runner)
    assert found.fault is fault
    assert words in f"{found.conclusion} {' '.join(found.sentences)}"


@pytest.mark.slow
def test_attention_to_a_cache_of_nvfp4_is_the_fault_of_the_kernel_that_others_contradict(
    runner: Runner, pinned: Callable[[str], AnyCase]
) -> None:
    case = pinned("nibbles_read_in_reverse")
    assert isinstance(case, Case)
    found = blamed_for(case, runner.verdict(case).failures[0], runner)
    assert found.fault is Blame.KERNEL
    assert "other kernels give the correct output" in found.conclusion


def test_slots_follow_from_lists_of_pages() -> None:
    lists = {
        "batch_indices": torch.tensor([0, 0, 1, -1]),
        "positions": torch.tensor([3, 4, 0, 0]),
        "kv_indices": torch.tensor([5, 7, 2]),
        "kv_indptr": torch.tensor([0, 2, 3]),
    }
    slots = named_slots(lists, 4)
    assert slots is not None
    assert slots.tolist() == [23, 28, 8, -1]
    beyond = named_slots({**lists, "positions": torch.tensor([3, 8, 4, 0])}, 4)
    assert beyond is not None
    assert beyond[1:3].eq(torch.iinfo(torch.int64).max).all()


def test_a_call_without_slots_names_none() -> None:
    assert named_slots({"page_pairs": torch.zeros(1, 2)}, 4) is None
