"""Copies that nobody waits for, on the host, where there is nothing to wait for."""

import torch

from attnfuzz.kernels.interface.transfers import Pending, done, to_device, to_host, write

HOST = torch.device("cpu")


def test_a_result_is_waited_for_before_it_is_read() -> None:
    log: list[str] = []

    def read() -> int:
        log.append("read")
        return 20

    pending = Pending(lambda: log.append("waited"), read).then(lambda number: number + 1)
    assert log == []
    assert pending.result() == 21
    assert log == ["waited", "read"]


def test_an_available_result_needs_no_wait() -> None:
    assert done(3).then(str).result() == "3"


def test_a_copy_holds_the_contents_at_the_time_of_the_request() -> None:
    value = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    copy = to_host(value)
    value.zero_()
    assert copy.result().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert copy.result().dtype is torch.bfloat16


def test_values_stay_where_they_are_if_they_are_there() -> None:
    value = torch.ones(3)
    assert to_device(value, HOST) is value
    elsewhere = torch.ones(3, device="meta")
    assert to_device(elsewhere, torch.device("meta")) is elsewhere


def test_values_are_written_in_the_dtype_and_the_strides_of_their_target() -> None:
    whole = torch.zeros(2, 3, dtype=torch.int32)
    target = whole[:, :2]
    assert write(target, torch.tensor([[1, 2], [3, 4]])) is target
    assert whole.tolist() == [[1, 2, 0], [3, 4, 0]]
