"""The CUDA fixup against the torch model: every byte of the memory around it, whatever the shapes and strides."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnfuzz.kernels.gpu.states import fixup_zero_kv_rows
from attnfuzz.kernels.planning import fixup

pytestmark = pytest.mark.gpu

MARGIN = 64
"""Elements in front of and behind a strided tensor, at least."""


@dataclass(frozen=True)
class Strided:
    """A tensor inside of a larger buffer."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def buffer(self) -> torch.Tensor:
        """The buffer, of random numbers."""
        reach = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True) if size)
        generator = torch.Generator().manual_seed(reach)
        return torch.randn(MARGIN + self.offset + reach + MARGIN, generator=generator).to(self.dtype)

    def within(self, buffer: torch.Tensor) -> torch.Tensor:
        """The tensor, in one such buffer."""
        return buffer.as_strided(self.shape, self.stride, MARGIN + self.offset)


@st.composite
def strided(draw: st.DrawFn, dtype: torch.dtype, shape: tuple[int, ...]) -> Strided:
    """A tensor of that shape with its axes in any order, gaps between them, and any alignment of its elements."""
    order = draw(st.permutations(range(len(shape))))
    stride, step = [0] * len(shape), 1
    for axis in order:
        stride[axis] = step + draw(st.sampled_from([0, 0, 0, 1, 2, 8]))
        step = stride[axis] * max(1, shape[axis])
    return Strided(dtype, shape, tuple(stride), draw(st.integers(0, 9)))


@st.composite
def calls(draw: st.DrawFn) -> tuple[Strided, Strided, list[int], list[int], int]:
    """(out, lse, kv_lens, cum_seq_lens, max_seq_len) of a call."""
    q_lens = draw(st.lists(st.integers(0, 40), max_size=80))
    kv_lens = [draw(st.sampled_from([0, 1, 9])) for _ in q_lens]
    starts = list(itertools.accumulate(q_lens, initial=draw(st.sampled_from([0, 0, 3]))))
    heads, dim = draw(st.sampled_from([1, 2, 3, 16])), draw(st.sampled_from([1, 3, 8, 40, 64, 128, 257]))
    shape = (starts[-1] + draw(st.integers(0, 5)), heads, dim)
    out = draw(strided(draw(st.sampled_from([torch.bfloat16, torch.float16, torch.float32])), shape))
    longest = max(q_lens, default=0)
    most = draw(st.sampled_from([longest, longest + 7, longest // 2, 2**31 - 1, 2**40]))
    return out, draw(strided(torch.float32, shape[:2])), kv_lens, starts, most


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def check_against_model(out: Strided, lse: Strided, kv_lens: torch.Tensor, starts: torch.Tensor, most: int) -> None:
    buffers = [[each.buffer().cuda() for each in (out, lse)] for _ in range(2)]
    for (out_buffer, lse_buffer), repair in zip(buffers, (fixup.fixup_zero_kv_rows, fixup_zero_kv_rows), strict=True):
        repair(out.within(out_buffer), lse.within(lse_buffer), kv_lens, starts, most)
    for expected, actual in zip(*buffers, strict=True):
        assert torch.equal(actual.view(torch.uint8), expected.view(torch.uint8))


@settings(deadline=None, max_examples=300, derandomize=True, database=None)
@given(calls())
def test_it_writes_the_same_elements_as_the_model(
    call: tuple[Strided, Strided, list[int], list[int], int],
) -> None:
    out, lse, kv_lens, starts, most = call
    check_against_model(out, lse, int32(kv_lens), int32(starts), most)


@pytest.mark.parametrize("gap", [0, 1])
@pytest.mark.parametrize(("heads", "dim"), [(128, 128), (5, 1), (1, 20_000), (3, 0), (2_000, 7)])
def test_many_and_large_heads(heads: int, dim: int, gap: int) -> None:
    shape = (301, heads, dim)
    out = Strided(torch.bfloat16, shape, (heads * (dim + gap), dim + gap, 1), offset=3 * gap)
    kv_lens, starts = int32([0, 4, 0, 0, 1]), int32([0, 100, 101, 101, 300, 301])
    check_against_model(out, Strided(torch.float32, shape[:2], (heads, 1), 0), kv_lens, starts, 300)


def test_more_requests_than_a_grid_has_rows() -> None:
    order = torch.arange(70_000, device="cuda")
    starts = torch.cat([order.new_zeros(1), (order % 3).cumsum(0)]).int()
    shape = (int(starts[-1]), 2, 8)
    out, lse = Strided(torch.bfloat16, shape, (16, 8, 1), 0), Strided(torch.float32, shape[:2], (2, 1), 0)
    check_against_model(out, lse, (order % 5).int(), starts, 2)


def test_offsets_beyond_32_bits() -> None:
    rows = 2**31 // (128 * 128) + 1000
    if torch.cuda.mem_get_info()[0] < rows * 128 * 128 * 2 * 1.6:
        pytest.skip("needs 7 GB of free GPU memory")
    out = torch.ones(rows, 128, 128, dtype=torch.bfloat16, device="cuda")
    lse = torch.ones(rows, 128, device="cuda")
    fixup_zero_kv_rows(out, lse, int32([7, 0, 3]), int32([0, rows - 900, rows - 1, rows]), 899)
    assert torch.equal((out == 0).flatten(1).all(dim=1), (lse == -math.inf).all(dim=1))
    cleared = (lse == -math.inf).any(dim=1).nonzero().flatten()
    assert (cleared[0].item(), cleared[-1].item(), len(cleared)) == (rows - 900, rows - 2, 899)
    assert bool((out[:-900] == 1).all())


def test_strides_beyond_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 10 * 2**30:
        pytest.skip("needs 10 GB of free GPU memory")
    # Three tokens that lie 2^31 elements apart.
    buffer = torch.ones(2**32 + 16, dtype=torch.bfloat16, device="cuda")
    out = buffer.as_strided((3, 2, 8), (2**31, 8, 1))
    lse = torch.ones(3, 2, device="cuda")
    fixup_zero_kv_rows(out, lse, int32([1, 0]), int32([0, 2, 3]), 2)
    assert bool((out[:2] == 1).all())
    assert bool((out[2] == 0).all())
    assert int((buffer[:100] == 0).sum()) == 0
    assert lse.tolist() == [[1, 1], [1, 1], [-math.inf, -math.inf]]


def small() -> dict[str, Any]:
    """Arguments of a legal call: four tokens, the first two of a request without keys."""
    return {
        "out": torch.ones(4, 2, 8, device="cuda"),
        "lse": torch.ones(4, 2, device="cuda"),
        "kv_lens": int32([0, 5]),
        "cum_seq_lens": int32([0, 2, 4]),
        "max_seq_len": 2,
    }


def test_a_graph_replays_it_with_other_lengths() -> None:
    """A capture refuses whatever synchronises."""
    arguments = small()
    # Loaded before the capture, as workers do.
    fixup_zero_kv_rows(**small())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fixup_zero_kv_rows(**arguments)
    assert bool((arguments["out"] == 1).all())
    arguments["kv_lens"].copy_(int32([5, 0]))
    arguments["cum_seq_lens"].copy_(int32([0, 3, 4]))
    graph.replay()
    assert (arguments["out"] == 0).all(dim=2).all(dim=1).tolist() == [False, False, False, True]


def test_it_runs_on_the_current_stream() -> None:
    arguments, stream = small(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        arguments["kv_lens"].zero_()
        fixup_zero_kv_rows(**arguments)
    stream.synchronize()
    assert bool((arguments["out"] == 0).all())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"out": torch.ones(4, 2, 8)}, "out must be on a GPU"),
        ({"kv_lens": torch.tensor([0, 5], dtype=torch.int32)}, "kv_lens must be on a GPU"),
        ({"out": torch.ones(4, 16)}, "out must have 3 axes, not 2"),
        ({"out": torch.ones(4, 2, 8, dtype=torch.float64)}, "out must be float32, bfloat16 or float16"),
        ({"lse": torch.ones(4, 3)}, r"lse must have shape \[4, 2\]"),
        ({"lse": torch.ones(4, 2, dtype=torch.bfloat16)}, "lse must be float32"),
        ({"kv_lens": torch.tensor([0, 5])}, "kv_lens must be int32"),
        ({"cum_seq_lens": torch.tensor([0, 4], dtype=torch.int32)}, r"cum_seq_lens must have 3 entries .*, not 2"),
        ({"max_seq_len": -1}, "max_seq_len must be 0 or more, not -1"),
    ],
)
def test_a_wrong_argument_is_named(changed: dict[str, Any], message: str) -> None:
    stays = "on a GPU" in message
    moved = {
        name: value if stays or not isinstance(value, torch.Tensor) else value.cuda() for name, value in changed.items()
    }
    with pytest.raises(ValueError, match=message):
        fixup_zero_kv_rows(**{**small(), **moved})
