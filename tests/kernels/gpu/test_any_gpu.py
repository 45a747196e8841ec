"""The attention kernels for any GPU, compiled for the CPU, against the native ones; tests/gpu runs them on a GPU."""

import inspect
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import tvm_ffi
import tvm_ffi.cpp
from attention_calls import AttentionCall, assert_same, calls
from hypothesis import given, settings
from hypothesis import strategies as st

from attnfuzz.harness.memory.arena import Arena
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.kernels.building import library_cache
from attnfuzz.kernels.gpu.any_gpu import ops
from attnfuzz.kernels.gpu.any_gpu.ops import ANY_GPU, EXPORTS, SOURCES
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.reference.case import Guard, Outputs

ATTENTION = ("decode", "context", "ragged", "mla_decode")


@pytest.fixture(scope="module")
def on_cpu() -> tvm_ffi.Module:
    """The library as ANY_GPU has it, but for the CPU."""
    files = [Path(__file__).parents[2] / "fakes" / "attention_on_cpu.cpp", *EXPORTS]

    def compiled(folder: str) -> str:
        build_here = partial(
            tvm_ffi.cpp.build, "attention_on_cpu", cpp_files=[str(file) for file in files], build_directory=folder
        )
        command = build.compiler()
        return library_cache.compiled("attention_on_cpu", command, {"CXX": command}, build_here, lambda _: None)

    key = library_cache.key([*files, *SOURCES], build.compiler())
    return tvm_ffi.load_module(str(library_cache.stored(f"attention_on_cpu-{key}", compiled)))


@pytest.fixture(autouse=True)
def _library(on_cpu: tvm_ffi.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "library", lambda: on_cpu)


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    with Arena() as arena:
        yield arena


@pytest.mark.slow
@pytest.mark.parametrize("kind", ATTENTION)
def test_attention_is_that_of_the_native_kernels_and_both_touch_nothing_else(kind: str, arena: Arena) -> None:
    @given(call=calls((kind,)), side=st.sampled_from(Guard))
    @settings(max_examples=30, deadline=None, database=None)
    def agree(call: AttentionCall, side: Guard) -> None:
        with GuardedMemory(arena, side, Outputs.POISONED) as memory:
            expected, actual = (
                call.placed(lambda name, value: memory.copy(name, value, stride=value.stride())) for _ in range(2)
            )
            call.op(NATIVE).function(**expected)
            call.op(ANY_GPU).function(**actual)
            assert_same(actual, expected)
            assert memory.damage().result() == []

    agree()


@given(call=calls(("mla_decode",)))
@settings(max_examples=10, deadline=None, database=None)
def test_a_drawn_call_has_exactly_the_workspace_that_its_kernel_uses(call: AttentionCall) -> None:
    # 1 MiB was too little for one call in a thousand: its kernel damaged the heap.
    batch, q_len, q_heads, rank = call.arguments["out"].shape
    need = NATIVE.decode_workspace(
        batch=batch,
        q_len=q_len,
        q_heads=q_heads,
        kv_heads=1,
        head_dim_vo=rank,
        max_seq_len=call.arguments["max_seq_len"],
    )
    assert call.arguments["workspace_buffer"].nbytes == need.total


def test_results_that_are_not_given_are_made_where_the_query_is() -> None:
    out, lse = ANY_GPU.mla_decode.function(
        query=torch.ones(1, 2, 3, 12),
        kv_cache=torch.ones(1, 4, 12),
        workspace_buffer=torch.empty(0, dtype=torch.uint8),
        qk_nope_head_dim=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        block_tables=torch.zeros(1, 1, dtype=torch.int32),
        seq_lens=torch.full((1,), 4, dtype=torch.int32),
        max_seq_len=4,
        return_lse=True,
    )
    assert torch.equal(out, torch.ones(1, 2, 3, 8))
    assert lse.shape == (2, 3)


@pytest.mark.slow
def test_head_dims_beyond_a_blocks_memory_are_rejected() -> None:
    long = torch.ones(1, 1, 6200)
    with pytest.raises(ValueError, match="head dims of 6200 and 6200 are too large"):
        ANY_GPU.decode.function(
            query=long,
            kv_cache=(long.unsqueeze(0), long.unsqueeze(0)),
            workspace_buffer=torch.empty(0, dtype=torch.uint8),
            block_tables=torch.zeros(1, 1, dtype=torch.int32),
            seq_lens=torch.ones(1, dtype=torch.int32),
            max_seq_len=1,
        )


@pytest.mark.parametrize("kind", ATTENTION)
def test_functions_have_the_names_and_signatures_of_the_native_ones(kind: str) -> None:
    mine, native = getattr(ANY_GPU, kind), getattr(NATIVE, kind)
    assert (mine.name, mine.writes, mine.module) == (native.name, native.writes, native.module)
    assert inspect.signature(mine.function) == inspect.signature(native.function)


def test_the_native_library_is_in_its_place_again_after_a_call() -> None:
    before = build.load()
    with pytest.raises(TypeError, match="no argument window"):
        ANY_GPU.decode.function(
            query=torch.ones(1, 1, 1),
            kv_cache=torch.ones(1, 1, 1, 1, 1),
            workspace_buffer=torch.empty(0),
            block_tables=torch.zeros(1, 1, dtype=torch.int32),
            seq_lens=torch.ones(1, dtype=torch.int32),
            max_seq_len=1,
            window=1,
        )
    assert build.load() is before
