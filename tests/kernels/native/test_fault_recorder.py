"""What a dying process leaves behind."""

import ctypes
import os
import signal
from typing import Any

import pytest
import torch

from attnfuzz.kernels.native.fault_recorder import install_fault_recorder

READ, WRITE = 1, 2
SI_KERNEL = 128


@pytest.mark.slow
def test_a_wild_read_is_recorded_with_its_address(guarded: Any, dying: Any) -> None:
    with guarded(right=True) as memory:
        end = memory.copy(torch.zeros(4)).data_ptr() + 16
        death = dying(lambda: ctypes.string_at(end + 5, 1))
        assert (death.signal, death.recorded_signal, death.done) == (signal.SIGSEGV, signal.SIGSEGV, 1)
        assert (death.address, death.access) == (end + 5, READ)


@pytest.mark.slow
def test_a_wild_write_is_recorded_with_its_address(guarded: Any, dying: Any) -> None:
    with guarded(right=False) as memory:
        start = memory.copy(torch.zeros(4)).data_ptr()
        death = dying(lambda: ctypes.memset(start - 1, 0, 1))
        assert death.signal == signal.SIGSEGV
        assert (death.address, death.access) == (start - 1, WRITE)


@pytest.mark.slow
def test_an_address_that_is_not_canonical_is_recorded_as_unknown(dying: Any) -> None:
    death = dying(lambda: ctypes.string_at(0x8000_0000_0000_0000 - 16, 1))
    assert death.signal == signal.SIGSEGV
    assert death.done == 1
    assert (death.code, death.address, death.access) == (SI_KERNEL, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT])
def test_other_fatal_signals_are_recorded_and_still_kill(dying: Any, number: signal.Signals) -> None:
    death = dying(lambda: os.kill(os.getpid(), number))
    assert (death.signal, death.recorded_signal, death.done) == (number, number, 1)
    assert (death.address, death.access) == (0, 0)


@pytest.mark.slow
def test_an_abort_is_recorded(dying: Any) -> None:
    assert dying(os.abort).recorded_signal == signal.SIGABRT


@pytest.mark.slow
def test_a_process_that_lives_leaves_no_record(dying: Any) -> None:
    assert dying(lambda: None).done == 0


@pytest.mark.parametrize("address", [0, 12345])
def test_an_impossible_address_is_rejected(address: int) -> None:
    with pytest.raises(ValueError, match="fault record"):
        install_fault_recorder(address)
