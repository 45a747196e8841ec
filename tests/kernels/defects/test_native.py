"""The second library: right until a defect is planted in it, and unknown to the first."""

import re
from collections.abc import Callable

import pytest
import torch

from attnfuzz.kernels.defects.catalogue import DEFECTS
from attnfuzz.kernels.defects.native import defective
from attnfuzz.kernels.native import build, ops
from attnfuzz.kernels.native.ops import workspace_bytes
from attnfuzz.kernels.native.planted import planted

BATCH, HEADS, KV_HEADS, DIM, PAGE, KV_LEN = 3, 4, 2, 24, 16, 100
NAMES = re.findall(r"DO\((\w+)\)", next(path for path in build.sources() if path.name == "defects.h").read_text())


def decode(dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor]:
    """A decode of requests of 100 keys, in 4 splits: out and lse."""
    generator = torch.Generator().manual_seed(0)
    columns = -(-KV_LEN // PAGE)
    need = workspace_bytes(batch=BATCH, q_len=1, q_heads=HEADS, kv_heads=KV_HEADS, head_dim_vo=DIM, max_seq_len=KV_LEN)
    answer = ops.trtllm_batch_decode_with_kv_cache(
        query=torch.randn(BATCH, HEADS, DIM, generator=generator).to(dtype),
        kv_cache=torch.randn(BATCH * columns, 2, KV_HEADS, PAGE, DIM, generator=generator).to(dtype),
        workspace_buffer=torch.zeros(need.total, dtype=torch.uint8),
        block_tables=torch.arange(BATCH * columns, dtype=torch.int32).view(BATCH, columns),
        seq_lens=torch.full((BATCH,), KV_LEN, dtype=torch.int32),
        max_seq_len=KV_LEN,
        bmm1_scale=0.2,
        sinks=torch.linspace(-1, 1, HEADS),
        return_lse=True,
    )
    assert isinstance(answer, tuple)
    return answer


def context_and_merge() -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in a window, merged with itself."""
    generator = torch.Generator().manual_seed(0)
    cumulative = torch.tensor([0, 7, 7, 27], dtype=torch.int32)
    answer = ops.trtllm_batch_context_with_kv_cache(
        query=torch.randn(27, HEADS, DIM, generator=generator),
        kv_cache=torch.randn(6, 2, KV_HEADS, PAGE, DIM, generator=generator),
        workspace_buffer=torch.zeros(0, dtype=torch.uint8),
        block_tables=torch.arange(6, dtype=torch.int32).view(3, 2),
        seq_lens=torch.tensor([5, 0, 30], dtype=torch.int32),
        max_q_len=20,
        max_kv_len=30,
        bmm1_scale=0.2,
        bmm2_scale=1.7,
        batch_size=3,
        cum_seq_lens_q=cumulative,
        cum_seq_lens_kv=cumulative,
        window_left=5,
        return_lse=True,
    )
    assert isinstance(answer, tuple)
    ops.merge_state_in_place(*answer, *(tensor.clone() for tensor in answer))
    return answer


def test_the_first_library_has_no_room_for_defects() -> None:
    assert not hasattr(build.load(), "plant")
    assert hasattr(build.load_with_defects(), "plant")


@pytest.mark.parametrize("call", [decode, context_and_merge])
def test_without_a_defect_both_libraries_give_the_same_bits(
    call: Callable[[], tuple[torch.Tensor, torch.Tensor]],
) -> None:
    expected = call()
    with planted():
        assert build.load() is build.load_with_defects()
        answer = call()
    assert all(ours.equal(theirs) for ours, theirs in zip(answer, expected, strict=True))


def test_several_defects_can_be_planted_at_once_and_are_gone_after_it() -> None:
    out, lse = decode()
    with planted("sink_missing_from_lse", "output_rounded_toward_zero"):
        wrong_out, wrong_lse = decode()
    assert not wrong_lse.equal(lse)
    assert not wrong_out.equal(out)
    assert (wrong_out.abs() <= out.abs()).all()
    with planted():
        assert decode()[0].equal(out)


@pytest.mark.slow
def test_a_defect_is_gone_after_a_call_that_raises() -> None:
    right = decode()
    lengths = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="cum_seq_lens must have 2 entries"):
        defective("log2_e_of_four_digits").fixup.function(
            out=torch.zeros(1, 1, 8), lse=torch.zeros(1, 1), kv_lens=lengths, cum_seq_lens=lengths, max_seq_len=1
        )
    assert build.load() is not build.load_with_defects()
    with planted():
        assert decode()[1].equal(right[1])
    with planted("log2_e_of_four_digits"):
        assert not decode()[1].equal(right[1])


def test_an_unknown_defect_is_named() -> None:
    with pytest.raises(ValueError, match="no defect called nothing_like_it"), planted("nothing_like_it"):
        pass


def test_a_defective_op_is_otherwise_the_correct_one() -> None:
    for correct, wrong in zip(ops.NATIVE.ops(), defective("window_one_short").ops(), strict=True):
        assert (wrong.name, wrong.writes, wrong.module) == (correct.name, correct.writes, correct.module)
        assert wrong.function is not correct.function


def test_every_defect_of_the_header_is_in_the_catalogue_and_in_some_kernel() -> None:
    known = {defect.name for defect in DEFECTS}
    code = "".join(path.read_text() for path in build.sources() if path.name != "defects.h")
    assert sorted(set(NAMES)) == NAMES
    assert not set(NAMES) - known
    assert not [name for name in NAMES if f"planted(Defect::{name})" not in code]
