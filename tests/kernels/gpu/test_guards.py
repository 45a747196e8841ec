"""What goes to the kernels of guarded GPU memory, and what comes back."""

from types import SimpleNamespace

import fake_guards
import pytest
import torch

from attnfuzz.kernels.cuda import guards
from attnfuzz.kernels.interface.byte_runs import ByteRun

HOST = torch.device("cpu")


@pytest.fixture(autouse=True)
def _kernels_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_guards.install(monkeypatch.setattr)


def test_runs_are_sent_as_the_records_that_the_kernels_take(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr(guards, "kernels", lambda: SimpleNamespace(write=lambda packed, _: sent.append(packed)))
    guards.write([ByteRun(1, 2, 3), ByteRun(1 << 60, 5, 6, (1 << 18) - 1)])
    numbers = (1, 2, 3, 2**64 - 1, 1 << 60, 5, 6, (1 << 18) - 1)
    assert sent == [b"".join(each.to_bytes(8, "little") for each in numbers)]


def test_the_first_byte_that_differs_and_their_number_come_back_for_each_run() -> None:
    one = torch.zeros(100, dtype=torch.uint8)
    other = one.clone()
    runs = [ByteRun(one.data_ptr(), other.data_ptr(), 50), ByteRun(one.data_ptr() + 50, other.data_ptr() + 50, 50)]
    assert guards.compare(runs, HOST).result() == [None, None]
    other[[50, 60, 99]] = 1
    assert guards.compare(runs, HOST).result() == [None, (0, 3)]
    other[49] = 1
    assert guards.compare(runs, HOST).result() == [(49, 1), (0, 3)]
    assert guards.compare(runs[1:], HOST, restore=True).result() == [(0, 3)]
    assert torch.equal(one[50:], other[50:])
    assert guards.compare(runs, HOST).result() == [(49, 1), None]
    guards.write(runs)
    assert torch.equal(one, other)


def test_nothing_is_launched_for_no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "kernels", None)
    assert guards.compare([], HOST).result() == []


def test_spans_come_to_the_host_together_aligned_as_they_were() -> None:
    memory = torch.arange(200, dtype=torch.uint8)
    first = memory.data_ptr()
    spans = [(first + 3, 20), (first + 50, 1), (first + 64, 33)]
    copies, offsets = guards.gather(spans, HOST)
    for (address, nbytes), offset in zip(spans, offsets, strict=True):
        assert (offset - address) % 16 == 0
        assert torch.equal(copies.result()[offset : offset + nbytes], memory[address - first :][:nbytes])
