"""The attention kernels for any GPU against the native ones: in guarded memory, in graphs, and with wrong metadata."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from attention_calls import AttentionCall, assert_same, calls, with_strides
from hypothesis import given, settings

from attnfuzz.harness.memory.cuda.arena import CudaArena
from attnfuzz.harness.memory.cuda.memory import CudaMemory
from attnfuzz.kernels.gpu.any_gpu.ops import ANY_GPU
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.reference.case import Guard, Outputs

pytestmark = pytest.mark.gpu

ATTENTION = ("decode", "context", "ragged", "mla_decode")

WILD = """
import sys
import torch
from attnfuzz.harness.memory.cuda.arena import CudaArena
from attnfuzz.harness.memory.cuda.memory import CudaMemory
from attnfuzz.kernels.gpu.any_gpu.ops import ANY_GPU
from attnfuzz.reference.case import Guard, Outputs

wrong = sys.argv[1]
# Lengths end where memory ends, and the pool begins where it begins.
side = Guard.LEFT if wrong == "page" else Guard.RIGHT
memory = CudaMemory(CudaArena(), side, Outputs.POISONED)
arguments = {
    "query": memory.copy("query", torch.ones(8, 2, 16)),
    "kv_cache": memory.copy("kv_cache", torch.ones(8, 2, 1, 4, 16)),
    "workspace_buffer": memory.copy("workspace_buffer", torch.zeros(4, dtype=torch.int32)),
    "block_tables": memory.copy("block_tables", torch.arange(8, dtype=torch.int32).unsqueeze(1)),
    "seq_lens": memory.copy("seq_lens", torch.full((8,), 4, dtype=torch.int32)),
    "max_seq_len": 4,
    "out": memory.copy("out", torch.zeros(8, 2, 16)),
}
ANY_GPU.decode.function(**arguments)
assert arguments["out"].eq(1).all()
assert not memory.damage().result()
print("legal use is fine")
if wrong == "lengths":
    arguments["seq_lens"] = memory.copy("short", torch.full((4,), 4, dtype=torch.int32))
if wrong == "table":
    arguments["block_tables"] = memory.copy("short", torch.arange(4, dtype=torch.int32).unsqueeze(1))
if wrong == "page":
    arguments["block_tables"].fill_(-1)
ANY_GPU.decode.function(**arguments)
try:
    torch.cuda.synchronize()
except RuntimeError as error:
    print(str(error).splitlines()[0])
"""


def expected_of(call: AttentionCall) -> dict[str, Any]:
    """The arguments of the call after the native kernel ran on them."""
    arguments = call.placed(lambda _, value: with_strides(value))
    call.op(NATIVE).function(**arguments)
    return arguments


@pytest.mark.parametrize("side", list(Guard))
@pytest.mark.parametrize("kind", ATTENTION)
def test_attention_is_that_of_the_native_kernels_and_touches_nothing_else(
    kind: str, side: Guard, arena: CudaArena
) -> None:
    @given(call=calls((kind,)))
    @settings(max_examples=60, deadline=None, database=None, derandomize=True)
    def agree(call: AttentionCall) -> None:
        expected = expected_of(call)
        with CudaMemory(arena, side, Outputs.POISONED) as memory:
            actual = call.placed(lambda name, value: memory.copy(name, value, stride=value.stride()))
            call.op(ANY_GPU).function(**actual)
            assert_same(actual, expected)
            assert memory.damage().result() == []

    agree()


@pytest.mark.parametrize("kind", ATTENTION)
def test_a_graph_replays_it_with_other_lengths(kind: str) -> None:
    """A capture refuses whatever synchronises."""

    @given(call=calls((kind,)))
    @settings(max_examples=15, deadline=None, database=None, derandomize=True)
    def agree(call: AttentionCall) -> None:
        actual = call.placed(lambda _, value: with_strides(value, "cuda"))
        stale = actual["out"].clone()
        # Loaded before the capture, as workers do.
        call.op(ANY_GPU).function(**call.placed(lambda _, value: with_strides(value, "cuda")))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call.op(ANY_GPU).function(**actual)
        assert torch.equal(actual["out"], stale)
        for arguments in (call.arguments, actual):
            # The pages of fewer keys are still there. What has less than none stays so.
            arguments["seq_lens"].copy_(arguments["seq_lens"] // 2)
        graph.replay()
        assert_same(actual, expected_of(call))

    agree()


def decode_arguments(keys: int) -> dict[str, Any]:
    """Of one query that attends to so many keys, on the CPU."""
    torch.manual_seed(keys)
    pages = -(-keys // 64)
    return {
        "query": torch.randn(1, 2, 64),
        "kv_cache": torch.randn(pages, 2, 1, 64, 64),
        "workspace_buffer": torch.zeros(1 << 20, dtype=torch.uint8),
        "block_tables": torch.randperm(pages).int().unsqueeze(0),
        "seq_lens": torch.tensor([keys], dtype=torch.int32),
        "max_seq_len": keys,
        "out": torch.empty(1, 2, 64),
        "bmm1_scale": 0.125,
    }


def test_a_long_request_is_as_exact_as_a_short_one() -> None:
    call = AttentionCall("decode", decode_arguments(100_000))
    actual = call.placed(lambda _, value: value.cuda())
    ANY_GPU.decode.function(**actual)
    torch.testing.assert_close(actual["out"].cpu(), expected_of(call)["out"], rtol=1e-5, atol=1e-6)


def test_it_runs_on_the_current_stream() -> None:
    arguments = AttentionCall("decode", decode_arguments(3)).placed(lambda _, value: value.cuda())
    # Loaded before: that may wait.
    ANY_GPU.decode.function(**arguments)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        arguments["seq_lens"].zero_()
        ANY_GPU.decode.function(**arguments)
    stream.synchronize()
    assert bool((arguments["out"] == 0).all())


@pytest.mark.parametrize("wrong", ["lengths", "table", "page"])
def test_wrong_metadata_is_a_fault(wrong: str) -> None:
    done = subprocess.run([sys.executable, "-c", WILD, wrong], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("legal use is fine\n"), done.stderr
    assert "illegal memory access" in done.stdout


@pytest.mark.parametrize("name", ["query", "kv_cache", "workspace_buffer", "block_tables", "seq_lens", "out"])
def test_an_argument_that_is_not_on_a_gpu_is_named(name: str) -> None:
    call = AttentionCall("decode", decode_arguments(3))
    arguments = call.placed(lambda each, value: value if each == name else value.cuda())
    with pytest.raises(ValueError, match=f"{name} must be on a GPU"):
        ANY_GPU.decode.function(**arguments)
