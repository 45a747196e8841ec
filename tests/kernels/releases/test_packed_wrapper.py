"""The stand-in for FlashInfer's wrapper of packed keys, alone, and the merge of two states."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from packaging.version import Version

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow, below
from attnfuzz.kernels.releases.packed_wrapper import PackedWrapper, merge_state
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry

DIM = 8
GEOMETRY = Geometry(
    q_heads=1, kv_heads=1, head_dim_qk=DIM, head_dim_vo=DIM, page_size=4, dtype=DType.FLOAT32, kv_dtype=DType.FLOAT32
)
STEP = Step(mode=Mode.DECODE, requests=(Request(0, 1, 1),), padded_tokens=1, tokens_per_request=1)


@pytest.fixture(autouse=True)
def bench(bench_of: Callable[[Case], Bench]) -> Iterator[Bench]:
    """A bench on which a release with FlashInfer 0.7.2 runs."""
    made = bench_of(Case(backend="trtllm_mha", geometry=GEOMETRY, steps=(STEP,)))
    with below(Version("0.7.2"), made, KernelsBelow(())):
        yield made


def planned(rows: list[int], **more: Any) -> PackedWrapper:
    wrapper = PackedWrapper(torch.zeros(64, dtype=torch.uint8), "NHD")
    starts = torch.tensor([0, *rows], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    wrapper.begin_forward(starts, starts, 1, 1, DIM, q_data_type=torch.float32, **more)
    return wrapper


def due(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int = -1) -> torch.Tensor:
    """Causal attention of one request."""
    place = torch.arange(len(q))
    seen = place[:, None] >= place
    if window >= 0:
        seen &= place[:, None] - place <= window
    logits = (0.5 * q[:, 0] @ k[:, 0].T).masked_fill(~seen, -torch.inf)
    return (torch.softmax(logits, dim=-1) @ v[:, 0])[:, None]


@pytest.mark.parametrize(("at_the_plan", "seen"), [({}, -1), ({"window_left": 1}, 1)])
def test_the_window_of_a_run_counts_only_if_its_plan_has_one(at_the_plan: dict[str, int], seen: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(5, 1, DIM) for _ in range(3))
    out = planned([5], **at_the_plan).forward(q, k, v, causal=True, sm_scale=0.5, window_left=1)
    torch.testing.assert_close(out, due(q, k, v, window=seen))


def test_two_states_are_merged_to_attention_to_all_keys() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 1, DIM) for _ in range(3))
    wrapper = planned([4])
    parts = [
        state
        for keys, values in ((k, v), (k + 1, v - 1))
        for state in wrapper.forward_return_lse(q, keys, values, causal=False, sm_scale=0.5)
    ]
    merged, _ = merge_state(*parts)
    keys, values = torch.cat((k, k + 1))[:, 0], torch.cat((v, v - 1))[:, 0]
    torch.testing.assert_close(merged[:, 0], torch.softmax(0.5 * q[:, 0] @ keys.T, dim=-1) @ values)


def test_other_rows_than_planned_are_refused_since_flashinfer_counts_them(bench: Bench) -> None:
    q = torch.zeros(4, 1, DIM)
    with pytest.raises(ValueError, match=r"q\.shape\[0\] \(4\) does not match qo_indptr\[-1\] \(3\)"):
        planned([3]).forward(q, q, q)
    with below(Version("0.6.3"), bench, KernelsBelow(())):
        assert planned([3]).forward(q, q, q).shape == q.shape
