"""The calls of recurrent layers, with metadata as builders make them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.releases.stand_ins import answered_by
from attnfuzz.kernels.vllm.states.kinds import STATE_KINDS
from attnfuzz.kernels.vllm.states.layers import FORWARDS, StateLayer

TOKENS = 7


class Recorded:
    """Takes launches, and writes the number of the launch to its outputs."""

    def __init__(self) -> None:
        self.launches: list[tuple[str, dict[str, Any]]] = []

    def op(self, function: str) -> Op:
        return Op(function, print, frozenset())

    def launch(self, op: Op, arguments: dict[str, Any]) -> None:
        self.launches.append((op.name.rpartition("_")[2], arguments))
        arguments["out"].fill_(len(self.launches))


def ran(kind: str, **metadata: Any) -> tuple[list[tuple[str, dict[str, Any]]], list[float]]:
    """The launches of a layer, and the one that wrote each token."""
    layer = StateLayer(STATE_KINDS[kind].kernels, {}, torch.zeros(9, 1, 1, 1))
    lower, out = Recorded(), torch.zeros(TOKENS)
    with answered_by(lower):  # type: ignore[arg-type]
        FORWARDS[kind](layer, SimpleNamespace(**metadata), {"query": torch.arange(TOKENS)}, out)
    return lower.launches, out.tolist()


def ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


MIXED = {
    "num_actual_tokens": TOKENS,
    "spec_sequence_masks": torch.tensor([False, True]),
    "num_prefills": 1,
    "num_decodes": 0,
    "num_decode_tokens": 0,
    "num_spec_decodes": 1,
    "spec_token_indx": ints(4, 5, 6),
    "non_spec_token_indx": ints(0, 1, 2, 3),
    "spec_state_indices_tensor": ints(3, 4, 5).view(1, 3),
    "spec_query_start_loc": ints(0, 3),
    "num_accepted_tokens": torch.tensor([2]),
    "non_spec_state_indices_tensor": ints(8),
    "non_spec_query_start_loc": ints(0, 4),
    "prefill_state_indices": ints(8),
    "prefill_query_start_loc": ints(0, 4),
    "has_initial_state": torch.tensor([False]),
    "prefill_has_initial_state": torch.tensor([False]),
}


def test_verifies_and_prefills_of_a_batch_get_their_own_tokens_and_states() -> None:
    ((first, verify), (second, prefill)), out = ran("gdn", **MIXED)
    assert (first, second) == ("verify", "prefill")
    assert verify["query"].tolist() == [4, 5, 6]
    assert (verify["draft_slots"].tolist(), verify["num_accepted"].tolist()) == ([[3, 4, 5]], [2])
    assert (prefill["slots"].tolist(), prefill["has_initial_state"].tolist()) == ([8], [False])
    assert out == [2] * 4 + [1] * 3


def test_decodes_beside_prefills_are_a_call_of_their_own_except_of_the_convolution() -> None:
    batch = MIXED | {
        "spec_sequence_masks": None,
        "num_decodes": 2,
        "num_decode_tokens": 2,
        "non_spec_state_indices_tensor": ints(6, 7, 8),
        "non_spec_query_start_loc": ints(0, 1, 2, 7),
        "prefill_query_start_loc": ints(0, 5),
        "has_initial_state": torch.tensor([True, True, False]),
    }
    ((_, decode), (_, prefill)), out = ran("gdn", **batch)
    assert (decode["slots"].tolist(), prefill["slots"].tolist()) == ([6, 7], [8])
    assert out == [1] * 2 + [2] * 5
    ((_, convolution),), _ = ran("gdn_conv", **batch)
    assert convolution["cu_seqlens"].tolist() == [0, 1, 2, 7]


MAMBA: dict[str, Any] = {
    "num_decodes": 2,
    "num_decode_tokens": 2,
    "num_prefills": 2,
    "num_prefill_tokens": 4,
    "num_accepted_tokens": None,
    "state_indices_tensor_d": ints(6, 7).view(2, 1),
    "state_indices_tensor_p": ints(8, 2),
    "query_start_loc_p": ints(0, 3, 4),
    "has_initial_states_p": torch.tensor([True, False]),
    "prep_initial_states": True,
    "chunk_size": 2,
    "seq_idx_p": ints(0, 0, 1),
    "cu_chunk_seqlen_p": ints(0, 1, 3, 4),
    "last_chunk_indices_p": ints(1, 2),
}


@pytest.mark.parametrize("kind", ["mamba2", "mamba2_conv"])
def test_a_layer_of_mamba_decodes_first_and_each_token_of_a_decode_without_drafts_is_a_row(kind: str) -> None:
    ((_, decode), (_, prefill)), out = ran(kind, **MAMBA)
    assert (decode["slots"].tolist(), decode["cu_seqlens"].tolist()) == ([6, 7], [0, 1, 2])
    starts = [0, 1, 3, 4] if kind == "mamba2" else [0, 3, 4]
    assert prefill["cu_seqlens"].tolist() == starts
    assert out == [1, 1, 2, 2, 2, 2, 0]


def test_a_chunk_of_mamba_begins_with_the_state_of_its_request_or_of_the_chunk_before() -> None:
    (_, (_, chunks)), _ = ran("mamba2", **MAMBA)
    # Two initial states, and behind them those after each chunk.
    assert (chunks["slots"].tolist(), chunks["target_slots"].tolist()) == ([0, 2, 1], [2, 3, 4])
    with pytest.raises(ValueError, match="up to 1 tokens"):
        ran("mamba2", **MAMBA | {"chunk_size": 1})
