"""A late device without a GPU: torch's own calls are back after each block."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from attnfuzz.harness.inside import late_device
from attnfuzz.harness.inside.late_device import StreamGate, late
from attnfuzz.kernels.cuda import guards


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> StreamGate:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(guards, "kernels", lambda: SimpleNamespace(hold=lambda *_: None))
    monkeypatch.setattr(guards, "stream", lambda: 0)
    # There is no page-locked memory without a GPU.
    word = torch.zeros(1, dtype=torch.int32)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: word)
    return StreamGate()


@pytest.mark.parametrize("raises", [False, True])
def test_calls_of_torch_are_replaced_for_the_block_alone(gate: StreamGate, *, raises: bool) -> None:
    methods, equal = dict(vars(torch.Tensor)), torch.equal
    assert "item" not in methods

    with pytest.raises(KeyError) if raises else nullcontext(), late(gate):
        assert "item" in vars(torch.Tensor)
        if raises:
            raise KeyError
    assert dict(vars(torch.Tensor)) == methods
    assert torch.equal is equal


def test_calls_on_the_host_do_as_before_and_leave_the_gate_closed(gate: StreamGate) -> None:
    value = torch.tensor([1, 2])
    with late(gate):
        ticket = gate._opened[0]
        assert (value.tolist(), value[1].item(), int(value[0]), bool(value[0])) == ([1, 2], 2, 1, True)
        assert torch.equal(value.to(torch.float32), value.cpu().float())
        assert torch.empty(2).copy_(value).tolist() == [1, 2]
        assert gate._opened[0] == ticket
    assert gate._opened[0] == ticket + 1


def test_a_wait_opens_the_gate_and_closes_it_again(gate: StreamGate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_device, "_waits", lambda method, _: method == "item")
    seen = []
    with late(gate):
        ticket = gate._ticket
        torch.tensor(3).item()
        seen += [gate._opened[0] == ticket, gate._ticket == ticket + 1]
    assert seen == [True, True]
