"""Writes of a GPU's memory that are made together, on the host."""

import ctypes
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING

import fake_guards
import pytest
import torch

from attnfuzz.harness.inside.execute import Execution, backend_of
from attnfuzz.harness.memory.cuda.arena import CudaArena
from attnfuzz.harness.memory.cuda.memory import CudaMemory, UnwrittenCudaMemory
from attnfuzz.harness.memory.cuda.staging import CHUNK, Chunks, StagedWrites, chunks_of
from attnfuzz.harness.search.examples import drawn_cases, run_examples
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.cuda import guards
from attnfuzz.kernels.interface.backend import Fill
from attnfuzz.reference.case import Case, Guard, Outputs

if TYPE_CHECKING:
    from fake_driver import FakeDriver


@pytest.fixture
def launches(driver: object, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of runs of each launch that writes."""
    del driver
    made: list[int] = []

    def write(packed: bytes, stream: int) -> None:
        made.append(len(packed) // 32)
        fake_guards.write(packed, stream)

    known = SimpleNamespace(write=write, compare=fake_guards.compare, failed_launch=lambda: "")
    monkeypatch.setattr(guards, "kernels", lambda: known)
    return made


@pytest.fixture(params=list(Guard))
def memory(arena: CudaArena, launches: list[int], request: pytest.FixtureRequest) -> Iterator[CudaMemory]:
    del launches
    with CudaMemory(arena, request.param, Outputs.POISONED) as memory:
        yield memory


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def test_the_tensors_of_a_block_are_written_by_one_launch(memory: CudaMemory, launches: list[int]) -> None:
    values, ids = numbers(3, 4, 8), torch.arange(7, dtype=torch.int32)
    with memory.at_once():
        dense, gapped = memory.copy("q", values), memory.copy("v", values, stride=(50, 10, 1))
        table = memory.copy("table", ids)
        zeros = memory.tensor("w", (5,), torch.int32, fill=Fill.ZEROS)
        out = memory.tensor("out", (4, 4), torch.bfloat16, fill=Fill.OUTPUT)
        poison = memory.tensor("pool", (3,), torch.float32)
        assert launches == []
    assert len(launches) == 1
    assert all(torch.equal(each, values) for each in (dense, gapped))
    assert torch.equal(table, ids)
    assert zeros.tolist() == [0] * 5
    assert out.isnan().all()
    assert poison.isnan().all()
    assert memory.damage().result() == []


def test_poison_and_outputs_stay_unwritten_for_a_tool_that_finds_reads_of_them(launches: list[int]) -> None:
    memory = UnwrittenCudaMemory(Outputs.POISONED, torch.device("cpu"))
    out = memory.tensor("out", (4,), torch.float32, fill=Fill.OUTPUT)
    memory.tensor("pool", (4,), torch.float32)
    memory.renew(out)
    assert launches == []
    assert memory.tensor("w", (5,), torch.int32, fill=Fill.ZEROS).tolist() == [0] * 5
    assert torch.equal(memory.copy("q", numbers(3, 4)), numbers(3, 4))
    memory.overwrite(out, numbers(4))
    assert torch.equal(out, numbers(4))


def test_without_a_block_each_is_written_at_once(memory: CudaMemory, launches: list[int]) -> None:
    assert torch.equal(memory.copy("q", numbers(5)), numbers(5))
    assert memory.tensor("w", (5,), torch.int32, fill=Fill.ZEROS).tolist() == [0] * 5
    assert len(launches) == 2


def test_a_launch_flushes_the_staged_writes_of_a_block(memory: CudaMemory) -> None:
    with memory.at_once():
        tensor = memory.copy("q", numbers(5))
        seal = memory.seal(memory.allocations())
        assert torch.equal(tensor, numbers(5))
        tensor[2] = 7
        assert seal.broken().result() == [("q", 2)]


@pytest.mark.parametrize("stride", [None, (24, 8, 1), (30, 10, 1)])
def test_rows_overwrite_the_fill_of_a_tensor(memory: CudaMemory, stride: tuple[int, int, int] | None) -> None:
    with memory.at_once():
        out = memory.tensor("out", (6, 2, 8), torch.bfloat16, stride=stride, fill=Fill.OUTPUT)
        for first in (0, 4):
            memory.overwrite(out[first : first + 2], numbers(2, 2, 8).double())
    for first in (0, 4):
        assert torch.equal(out[first : first + 2], numbers(2, 2, 8).bfloat16())
    assert out[2:4].isnan().all()
    assert memory.damage().result() == []


def test_values_that_are_broadcast_or_too_large_to_stage_are_written(memory: CudaMemory) -> None:
    with memory.at_once():
        large = memory.copy("large", numbers(1 << 19))
        small = memory.copy("small", numbers(3, 2))
        memory.overwrite(small, torch.ones(2))
        transposed = memory.copy("transposed", numbers(2, 3, 4).permute(2, 0, 1))
        memory.overwrite(transposed.permute(1, 2, 0), numbers(2, 3, 4) + 1)
    assert torch.equal(large, numbers(1 << 19))
    assert torch.equal(small, torch.ones(3, 2))
    assert torch.equal(transposed.permute(1, 2, 0), numbers(2, 3, 4) + 1)


def test_a_graph_repeats_no_write_of_staged_values(
    memory: CudaMemory, launches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = numbers(4)
    with monkeypatch.context() as capture:
        capture.setattr(Chunks, "capturing", lambda _: True)
        tensor = memory.copy("q", values)
        memory.overwrite(tensor, values + 1)
        assert launches == []
        memory.tensor("w", (5,), torch.int32, fill=Fill.ZEROS)
        assert launches == [1]
    assert torch.equal(tensor, values + 1)
    assert memory.damage().result() == []


def test_staging_memory_is_reused_only_when_it_has_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = SimpleNamespace(record=lambda _: None, query=lambda: False)
    monkeypatch.setattr(torch.cuda, "Event", lambda: read)
    monkeypatch.setattr(guards, "current_stream", lambda: None)
    empty: Callable[..., torch.Tensor] = torch.empty

    def unlocked(size: int, *, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        assert pin_memory
        return empty(size, dtype=dtype)

    monkeypatch.setattr(torch, "empty", unlocked)
    chunks = Chunks(torch.device("cuda"))
    first = chunks.take()
    chunks.give([first])
    assert chunks.take() is not first
    read.query = lambda: True
    assert chunks.take() is first


def test_values_of_many_tensors_take_as_many_chunks_as_they_need(driver: object) -> None:
    del driver
    writes = StagedWrites(chunks_of(torch.device("cpu")))
    source = (ctypes.c_ubyte * CHUNK)(*b"abc")
    target = (ctypes.c_ubyte * CHUNK)()
    address = ctypes.addressof(target)
    for _ in range(3):
        writes.into(address, writes.staged(address, ctypes.addressof(source), CHUNK - 16))
        writes.flush()
        assert bytes(target[:3]) == b"abc"
        target[0] = 0
    writes.drop()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["trtllm_mha", "trtllm_mla", "torch_sdpa"])
def test_cases_compute_the_same_as_in_the_hosts_memory(driver: "FakeDriver", backend: str) -> None:
    driver.memory = 1 << 29
    arena = CudaArena(device=torch.device("cpu"), budget=1 << 26)
    cases: list[Case] = []
    run_examples(drawn_cases(backend), cases.append, examples=6, seed_of=4)

    def judged(case: Case, memory: CudaMemory | None) -> Verdict:
        return Execution(
            Task(case=case, backend=backend), lambda _: None, memory=memory, backend=backend_of(backend)
        ).run()

    for case in cases:
        host, device = judged(case, None), judged(case, CudaMemory(arena, case.guard, case.outputs))
        assert (device.observations, device.margins, device.rows) == (host.observations, host.margins, host.rows)
