"""Backends with windows to both sides and intervals of keys: attnfuzz's own kernels, and functions."""

from typing import Any

import pytest
import torch
from msgspec.structs import replace
from plain_attention import attend_call
from small_cases import HEADS, passed, run, step

from attnfuzz.kernels.functions.function_backend import FunctionBackend, promised
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.trtllm.windowed import intervals
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mask, Mode
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.geometry import KvLayout

CAN = Capability(windows=True, right_windows=True, masks=(Mask.CAUSAL, Mask.FULL), layouts=tuple(KvLayout))
TWO_SIDED = Case(
    backend="trtllm_mha_windowed",
    geometry=replace(HEADS, window_left=3, window_right=1),
    steps=(step(Mode.EXTEND, (4, 8), (5, 3)), step(Mode.DECODE, (1, 9), (1, 4))),
    mask=Mask.FULL,
)
INTERVALS = replace(TWO_SIDED, geometry=HEADS, mask=Mask.INTERVALS)


@pytest.mark.parametrize("case", [TWO_SIDED, INTERVALS], ids=["a window to both sides", "intervals"])
def test_the_native_kernels_attend_within_windows(case: Case) -> None:
    passed(case)
    assert run(case, "trtllm_mha").observations


def test_intervals_are_those_of_the_rows_of_masks_and_absent_for_rows_of_no_request() -> None:
    masks = [torch.tensor([[0, 1, 1, 0], [0, 0, 1, 1]], dtype=torch.bool), torch.zeros(1, 0, dtype=torch.bool)]
    first, last = intervals(masks, 4)
    assert first.tolist() == [1, 2, 0, 0]
    assert last.tolist() == [2, 3, -1, -1]


@pytest.mark.parametrize(
    ("windows", "words"),
    [
        ({"window_right": 1}, "causal attention requires window_right to be -1 or 0"),
        ({"window_right": 1, "causal": False}, "requires both window_left and window_right"),
        ({"window_left": 1, "causal": False}, "requires both window_left and window_right"),
        ({"variable_window_token_starts": torch.zeros(1, dtype=torch.int32)}, "variable windows have starts and ends"),
    ],
)
def test_windows_that_flashinfer_refuses_are_refused(windows: dict[str, Any], words: str) -> None:
    one = torch.ones(1, dtype=torch.int32)
    starts = torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(ValueError, match=words):
        NATIVE.context.function(
            query=torch.ones(1, 1, 8),
            kv_cache=torch.ones(1, 2, 1, 1, 8),
            workspace_buffer=one,
            block_tables=one.view(1, 1),
            seq_lens=one,
            max_q_len=1,
            max_kv_len=1,
            bmm1_scale=1.0,
            bmm2_scale=1.0,
            batch_size=1,
            cum_seq_lens_q=starts,
            cum_seq_lens_kv=starts,
            **windows,
        )


def test_a_function_is_passed_the_end_of_a_window() -> None:
    def attend(*, out: torch.Tensor, mask: torch.Tensor | None, window_right: int, **arguments: Any) -> None:
        assert window_right == 1
        out[: arguments["cum_seq_lens_q"][-1]] = attend_call(mask=mask, **arguments).out

    assert "window_right" in promised(CAN, Contract())
    passed(
        replace(TWO_SIDED, geometry=replace(TWO_SIDED.geometry, kv_layout=KvLayout.NHD)),
        FunctionBackend(attend, capability=CAN),
    )
