"""FlashAttention's stand-in, alone: the rows of the schedule are written, and no others."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from packaging.version import Version

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow, below
from attnfuzz.kernels.vllm.flash_attention import forward, schedule
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry

PAGE, DIM = 4, 8
GEOMETRY = Geometry(
    q_heads=1, kv_heads=1, head_dim_qk=DIM, head_dim_vo=DIM, page_size=PAGE, dtype=DType.FLOAT32, kv_dtype=DType.FLOAT32
)
STEP = Step(mode=Mode.DECODE, requests=(Request(0, 1, 1),), padded_tokens=1, tokens_per_request=1)


@pytest.fixture(autouse=True)
def _running(bench_of: Callable[[Case], Bench]) -> Iterator[None]:
    """A release runs on a bench."""
    bench = bench_of(Case(backend="trtllm_mha", geometry=GEOMETRY, steps=(STEP,)))
    with below(Version("0.7.2"), bench, KernelsBelow(())):
        yield


def starts(*rows: int) -> torch.Tensor:
    return torch.tensor([0, *rows], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def planned(*rows: int, num_splits: int = 0) -> torch.Tensor:
    batch = len(rows)
    given = (batch, 2, 8, 1, 1, DIM, DIM, torch.float32, torch.full((batch,), 5), starts(*rows))
    return schedule(*given, *(None,) * 4, PAGE, 0, True, -1, -1, False, num_splits, None, 0)


def run(metadata: torch.Tensor | None, *rows: int, num_splits: int = 0, **more: Any) -> torch.Tensor:
    """The output of requests with five keys each on pages 1 and 2; NaN where nothing was written."""
    torch.manual_seed(0)
    q, cache = torch.randn(sum(rows), 1, DIM), torch.randn(2, 3, PAGE, 1, DIM)
    lengths, table = (torch.tensor([value] * len(rows), dtype=torch.int32) for value in (5, [1, 2]))
    out = torch.full_like(q, torch.nan)
    before = (q, *cache, None, None, None, out, starts(*rows), None, None, None, lengths, 2, 8, table)
    mask = (more.get("causal", True), *more.get("window", (-1, -1)), more.get("softcap", 0.0))
    after = (None, None, None, 0.5, *mask, True, metadata, num_splits, None, 0, None)
    forward(*before, *(None,) * 5, *after, 1, 0, None)
    return out


def test_a_schedule_of_the_batch_writes_every_row() -> None:
    assert torch.equal(run(planned(2, 1), 2, 1), run(None, 2, 1))
    assert run(None, 2, 1).isfinite().all()


def test_rows_that_a_schedule_lacks_stay_unwritten() -> None:
    out = run(planned(1, 1), 2, 1)
    assert out.isnan().all(dim=(1, 2)).tolist() == [False, True, False]


def test_a_schedule_of_another_batch_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"scheduler_metadata has \(33,\), for a batch of 2"):
        run(planned(*[1] * 5), 2, 1)


def test_a_schedule_with_more_splits_than_there_is_room_for_is_refused() -> None:
    with pytest.raises(RuntimeError, match="32 splits, and there is room for 4"):
        run(planned(2, 1, num_splits=32), 2, 1, num_splits=4)


def test_arguments_without_a_stand_in_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="soft caps"):
        run(None, 2, 1, softcap=30.0)


def test_a_window_that_ends_at_the_rows_own_key_is_causal() -> None:
    windowed = run(None, 2, 1, causal=False, window=(2, 0))
    assert torch.equal(windowed, run(None, 2, 1, window=(2, -1)))
    assert not torch.equal(windowed, run(None, 2, 1))


def test_a_window_with_keys_behind_the_rows_own_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="after a row's own"):
        run(None, 2, 1, causal=False, window=(2, 1))
