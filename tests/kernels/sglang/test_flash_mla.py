"""FlashMLA's stand-ins below SGLang, alone: a schedule divides the blocks of a batch, and a run follows it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from packaging.version import Version

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow, below
from attnfuzz.kernels.sglang.flash_mla import LIBRARIES, FlashMLASchedMeta, flash_mla_with_kvcache, schedule_of
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.geometry import Geometry

RANK, ROPE, PAGE = 8, 4, 64
STEP = Step(mode=Mode.DECODE, requests=(Request(0, 1, 1),), padded_tokens=1, tokens_per_request=1)
CASE = Case(
    backend="trtllm_mha",
    geometry=Geometry(q_heads=2, kv_heads=1, head_dim_qk=8, head_dim_vo=8, page_size=4),
    steps=(STEP,),
)


@pytest.fixture
def bench(bench_of: Callable[[Case], Bench]) -> Iterator[Bench]:
    """The bench on which a release runs."""
    made = bench_of(CASE)
    with below(Version("0.7.2"), made, KernelsBelow(())):
        yield made


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("lengths", [(1,), (64, 65), (0, 700, 1), (3000,), (7,) * 300])
@pytest.mark.parametrize("parts", [1, 3, 132])
def test_a_schedule_has_each_block_of_keys_once(lengths: tuple[int, ...], parts: int) -> None:
    schedule, splits = schedule_of(ints(*lengths), parts)
    blocks = [max(1, -(-length // PAGE)) for length in lengths]
    seen: list[tuple[int, int]] = []
    for first, begin, last, end, _, *_ in schedule.tolist():
        for request in range(first, min(last + 1, len(blocks))):
            stop = end if request == last else blocks[request]
            seen += [(request, block) for block in range(begin if request == first else 0, stop)]
    assert seen == [(request, block) for request, count in enumerate(blocks) for block in range(count)]
    assert len(splits) == len(lengths) + 1
    assert bool((splits.diff() >= 1).all())


def arguments(bench: Bench, lengths: torch.Tensor, planned: torch.Tensor) -> dict[str, Any]:
    """The arguments of a decode of two requests, with the schedule of a batch with `planned` keys."""
    torch.manual_seed(0)
    schedule, splits = schedule_of(planned, 4)
    return {
        "q": torch.randn(2, 1, 2, RANK + ROPE),
        "k_cache": bench.memory.copy("cache", torch.randn(5, PAGE, 1, RANK + ROPE)),
        "block_table": ints(1, 2, 3, 4).view(2, 2),
        "cache_seqlens": lengths,
        "head_dim_v": RANK,
        "tile_scheduler_metadata": schedule,
        "num_splits": splits,
        "softmax_scale": 0.5,
        "causal": True,
    }


def test_a_request_of_another_schedule_is_not_written(bench: Bench) -> None:
    given = arguments(bench, ints(70, 6), ints(60, 6))
    out, lse = flash_mla_with_kvcache(**given)
    keys = given["k_cache"][3, :6, 0]
    logits = 0.5 * given["q"][1, 0] @ keys.T
    torch.testing.assert_close(out[1, 0], torch.softmax(logits, dim=-1) @ keys[:, :RANK])
    torch.testing.assert_close(lse[1, :, 0], logits.logsumexp(-1))
    assert bool(out[0].isnan().all())


def test_functions_of_the_new_library_take_the_same_schedule(bench: Bench) -> None:
    given = arguments(bench, ints(70, 6), ints(70, 6))
    due, _ = flash_mla_with_kvcache(**given)
    schedule = FlashMLASchedMeta(given.pop("tile_scheduler_metadata"), given.pop("num_splits"))
    run = LIBRARIES["flash_mla"]["flash_mla_with_kvcache"]
    out, _ = run(**given, tile_scheduler_metadata=schedule, use_legacy=True, is_fp8_kvcache=False)
    assert torch.equal(out, due)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_table": ints(1, 2).view(1, 2)}, "block_table must have shape"),
        ({"num_splits": ints(0, 1)}, "num_splits must have shape"),
        ({"cache_seqlens": torch.tensor([70, 6])}, "cache_seqlens must have dtype int32"),
    ],
)
def test_batches_that_the_library_refuses_are_refused(bench: Bench, change: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        flash_mla_with_kvcache(**{**arguments(bench, ints(70, 6), ints(70, 6)), **change})
