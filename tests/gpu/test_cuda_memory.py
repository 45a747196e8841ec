"""Guarded memory on a real GPU: it says what the host's says, and what no tensor owns can't be touched."""

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from memory_scripts import Made, play, scripts

from attnfuzz.harness.memory.arena import Arena
from attnfuzz.harness.memory.cuda.arena import CudaArena
from attnfuzz.harness.memory.cuda.memory import CudaMemory
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.kernels.cuda import guards
from attnfuzz.kernels.interface.byte_runs import ByteRun
from attnfuzz.kernels.interface.transfers import to_device, to_host
from attnfuzz.reference.case import Guard, Outputs

pytestmark = pytest.mark.gpu

STRAY = """
import sys
import torch
from attnfuzz.harness.memory.cuda.arena import CudaArena
from attnfuzz.harness.memory.cuda.memory import CudaMemory
from attnfuzz.kernels.interface.byte_runs import ByteRun
from attnfuzz.kernels.cuda import guards
from attnfuzz.reference.case import Guard, Outputs

side, access, distance = sys.argv[1], sys.argv[2], int(sys.argv[3])
memory = CudaMemory(CudaArena(), Guard(side), Outputs.POISONED)
tensor, other = memory.copy("kv", torch.ones(1000)), memory.copy("other", torch.ones(8))
edge = tensor.data_ptr() + tensor.nbytes + distance - 4 if side == "right" else tensor.data_ptr() - distance
runs = {"read": (other.data_ptr(), edge, 4), "write": (edge, other.data_ptr(), 4)}
assert not memory.damage().result()
print("legal use is fine")
guards.write([ByteRun(*runs[access])])
try:
    torch.cuda.synchronize()
except RuntimeError as error:
    print(str(error).splitlines()[0])
"""


@pytest.fixture(scope="module")
def host_arena() -> Iterator[Arena]:
    with Arena() as arena:
        yield arena


@pytest.fixture(scope="module")
def source() -> torch.Tensor:
    return torch.zeros(1 << 16, dtype=torch.uint8, device="cuda")


def test_its_seals_report_the_same_as_those_of_the_host(
    arena: CudaArena, host_arena: Arena, source: torch.Tensor
) -> None:
    def poke_host(address: int, content: bytes) -> None:
        ctypes.memmove(address, content, len(content))

    def poke(address: int, content: bytes) -> None:
        source[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        guards.write([ByteRun(address, source.data_ptr(), len(content))])

    @given(script=scripts())
    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    def agree(script: tuple[Guard, list[Made]]) -> None:
        guard, made = script
        with GuardedMemory(host_arena, guard, Outputs.POISONED) as host:
            expected: list[Any] = play(host, made, poke_host)
        with CudaMemory(arena, guard, Outputs.POISONED) as memory:
            assert play(memory, made, poke) == expected

    agree()


@pytest.mark.parametrize("offset", [0, 1, 7, 16, 4099])
@pytest.mark.parametrize("other_offset", [0, 5])
@pytest.mark.parametrize("nbytes", [0, 1, 15, 16, 17, 5000, 3 << 20])
def test_runs_are_written_and_compared_whatever_their_alignment(offset: int, other_offset: int, nbytes: int) -> None:
    generator = torch.Generator().manual_seed(nbytes)
    content = torch.randint(0, 256, (nbytes + 8192,), dtype=torch.uint8, generator=generator)
    target, other = torch.zeros_like(content, device="cuda"), content.cuda()
    run = ByteRun(target.data_ptr() + offset, other.data_ptr() + other_offset, nbytes)
    guards.write([run])
    expected = torch.zeros_like(content)
    expected[offset : offset + nbytes] = content[other_offset : other_offset + nbytes]
    assert torch.equal(target.cpu(), expected)
    assert guards.compare([run], target.device).result() == [None]
    if nbytes:
        places = {0, nbytes // 2, nbytes - 1}
        for place in places:
            target[offset + place] ^= 1
        assert guards.compare([run], target.device).result() == [(0, len(places))]
        target[offset] ^= 1
        rest = sorted(places - {0})
        assert guards.compare([run], target.device).result() == [(rest[0], len(rest)) if rest else None]
        guards.compare([run], target.device, restore=True)
        assert torch.equal(target.cpu(), expected)


def test_more_runs_than_fit_one_launch_keep_their_order() -> None:
    target = torch.arange(1000, dtype=torch.int32, device="cuda")
    other = target.clone()
    runs = [ByteRun(target.data_ptr() + 4 * index, other.data_ptr() + 4 * index, 4) for index in range(1000)]
    target[[3, 64, 999]] = -1
    found = guards.compare(runs, target.device).result()
    assert [index for index, each in enumerate(found) if each is not None] == [3, 64, 999]
    guards.write(runs)
    assert torch.equal(target, other)


def test_fills_and_seals_can_be_captured(arena: CudaArena) -> None:
    with CudaMemory(arena, Guard.RIGHT, Outputs.POISONED) as memory:
        tensor, graph = memory.copy("a", torch.arange(100.0)), torch.cuda.CUDAGraph()
        copied = memory.tensor("b", (100,), torch.float32)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            guards.write([ByteRun(copied.data_ptr(), tensor.data_ptr(), 400)])
        tensor += 1
        graph.replay()
        assert torch.equal(copied, tensor)
        assert memory.damage().result() == []


@pytest.mark.parametrize("count", [1 << 16, 20 << 20])
def test_copies_hold_the_contents_at_the_time_of_the_request(arena: CudaArena, count: int) -> None:
    with CudaMemory(arena, Guard.RIGHT, Outputs.POISONED) as memory:
        # What is queued after this has not begun when the host goes on.
        torch.cuda._sleep(10**8)
        value = torch.arange(count, dtype=torch.int32)
        placed, moved = memory.copy("a", value), to_device(value, arena.device)
        back = to_host(placed)
        value.zero_()
        placed.zero_()
        # Memory of the host that was given back serves nobody while a copy from it is under way.
        to_device(torch.zeros(count, dtype=torch.int32), arena.device)
        expected = torch.arange(count, dtype=torch.int32)
        assert torch.equal(back.result(), expected)
        assert torch.equal(moved.cpu(), expected)


def test_no_copy_and_no_comparison_waits(arena: CudaArena) -> None:
    # The second time, all memory is there.
    for _ in range(2):
        with CudaMemory(arena, Guard.RIGHT, Outputs.POISONED) as memory:
            torch.cuda.synchronize()
            torch.cuda._sleep(10**9)
            tensor = memory.copy("a", torch.arange(1000.0))
            memory.copy("b", torch.ones(3, 4), stride=(7, 1))
            seal = memory.seal([memory.allocation_of(tensor)])
            broken, damage, back = seal.broken(), memory.damage(), to_host(tensor)
            under_way = not torch.cuda.current_stream().query()
            assert (broken.result(), damage.result(), back.result()[-1].item()) == ([], [], 999)
            del tensor
    assert under_way


def test_cases_one_after_another_use_the_same_memory(arena: CudaArena) -> None:
    def addresses() -> list[int]:
        with CudaMemory(arena, Guard.RIGHT, Outputs.POISONED) as memory:
            return [memory.tensor("t", (size,), torch.float32).data_ptr() for size in (10, 1000, 1 << 20)]

    first = addresses()
    assert all(sorted(addresses()) == sorted(first) for _ in range(3))


@pytest.mark.parametrize("distance", [4, 4096, 15 << 20])
@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize("side", list(Guard))
def test_an_access_beyond_the_guard_is_a_fault(side: Guard, access: str, distance: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STRAY, side.value, access, str(distance)], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("legal use is fine\n"), done.stderr
    assert "illegal memory access" in done.stdout
