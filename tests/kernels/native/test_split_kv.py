"""Split KV: concurrent splits, their workspace and its semaphores."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from attnfuzz.kernels.interface.ops_table import WorkspaceBytes
from attnfuzz.kernels.native import ops
from attnfuzz.kernels.native.ops import workspace_bytes

SIGSEGV = 11
WRITE = 2
PAGE, DIM, HEADS, KV_HEADS, Q_LEN = 16, 32, 4, 2, 3
UNWRITTEN = 7.0
LENGTHS = (200, 0, 1, 90, 256)


def used(max_seq_len: int = 256) -> WorkspaceBytes:
    return workspace_bytes(
        batch=len(LENGTHS),
        q_len=Q_LEN,
        q_heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim_vo=DIM,
        max_seq_len=max_seq_len,
    )


def arguments() -> dict[str, Any]:
    """A decode with 8 splits."""
    generator = torch.Generator().manual_seed(0)
    columns = 256 // PAGE
    return {
        "query": torch.randn(len(LENGTHS) * Q_LEN, HEADS, DIM, generator=generator),
        "kv_cache": torch.randn(len(LENGTHS) * columns, 2, KV_HEADS, PAGE, DIM, generator=generator),
        "block_tables": torch.arange(len(LENGTHS) * columns, dtype=torch.int32).view(len(LENGTHS), columns),
        "seq_lens": torch.tensor(LENGTHS, dtype=torch.int32),
        "max_seq_len": 256,
        "bmm1_scale": 0.2,
        "q_len_per_req": Q_LEN,
        "return_lse": True,
    }


def decode(workspace: torch.Tensor, **changes: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Out and lse, with a sentinel where nothing was written."""
    out = torch.full((len(LENGTHS) * Q_LEN, HEADS, DIM), UNWRITTEN)
    lse = torch.full((len(LENGTHS) * Q_LEN, HEADS), UNWRITTEN)
    answer = ops.trtllm_batch_decode_with_kv_cache(
        **{**arguments(), "workspace_buffer": workspace, "out": out, "lse": lse, **changes}
    )
    assert isinstance(answer, tuple)
    return answer


def fresh(filler: int = 0) -> torch.Tensor:
    """A workspace of the exact size, zero in its semaphores and `filler` beyond."""
    workspace = torch.full((used().total,), filler, dtype=torch.uint8)
    workspace[: used().semaphores] = 0
    return workspace


def test_fifty_runs_in_one_workspace_give_the_same_bits_and_leave_the_semaphores_zero() -> None:
    workspace = fresh()
    first = decode(workspace)
    for _ in range(50):
        again = decode(workspace)
        assert again[0].equal(first[0])
        assert again[1].equal(first[1])
        assert not workspace[: used().semaphores].any()


def test_scratch_may_hold_anything() -> None:
    clean, dirty = decode(fresh()), decode(fresh(filler=0xFF))
    assert dirty[0].equal(clean[0])
    assert dirty[1].equal(clean[1])


def test_a_semaphore_that_is_not_zero_costs_its_rows() -> None:
    request, kv_head = 4, 1
    workspace = fresh()
    workspace.view(torch.int32)[request * KV_HEADS + kv_head] = 100
    expected, (out, lse) = decode(fresh()), decode(workspace)
    rows, heads = slice(request * Q_LEN, (request + 1) * Q_LEN), slice(2, 4)
    expected[0][rows, heads] = UNWRITTEN
    expected[1][rows, heads] = UNWRITTEN
    assert out.equal(expected[0])
    assert lse.equal(expected[1])


def test_any_stated_maximum_gives_the_same_attention() -> None:
    expected, expected_lse = decode(fresh())
    for maximum in (1, 33, 100_000):
        size = used(maximum).total
        out, lse = decode(torch.zeros(size, dtype=torch.uint8), max_seq_len=maximum)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(lse, expected_lse, rtol=1e-5, atol=1e-6)


def test_calls_of_other_shapes_share_a_workspace() -> None:
    workspace = torch.full((used().total,), 0xFF, dtype=torch.uint8)
    workspace[: used().semaphores] = 0
    smaller = {"query": arguments()["query"][:Q_LEN], "out": None, "lse": None}
    decode(workspace, **smaller)
    assert decode(workspace)[0].equal(decode(fresh())[0])


def test_small_calls_have_several_splits_and_single_splits_need_no_scratch() -> None:
    assert used(64).scratch == 2 * len(LENGTHS) * Q_LEN * HEADS * (DIM + 2) * 4
    assert used(32).scratch == 0
    assert used(10**6).scratch == used(256).scratch


@pytest.mark.slow
def test_a_workspace_one_word_too_small_is_overrun(guarded: Any, dying: Any) -> None:
    with guarded(right=True) as memory:
        exact = memory.copy(fresh())
        short = memory.copy(fresh()[:-4])
        assert dying(lambda: decode(exact)).signal == 0
        death = dying(lambda: decode(short))
        assert (death.signal, death.access) == (SIGSEGV, WRITE)
        assert death.address == short.data_ptr() + short.nbytes


@pytest.mark.slow
def test_splits_run_on_several_threads_also_in_a_forked_child(dying: Any) -> None:
    expected = decode(fresh())[0]
    out, prepared = torch.zeros_like(expected), {**arguments(), "workspace_buffer": fresh()}

    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    def child() -> None:
        # torch's own threads do not survive a fork: only small tensors are touched here.
        before = threads()
        ops.trtllm_batch_decode_with_kv_cache(**prepared, out=out)
        assert out.equal(expected)
        assert threads() > before

    assert threads() > 1
    assert dying(child).signal == 0


def test_python_threads_may_decode_at_the_same_time() -> None:
    expected = decode(fresh())[0]
    answers: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: answers.append(decode(fresh())[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == len(threads)
    assert all(answer.equal(expected) for answer in answers)
