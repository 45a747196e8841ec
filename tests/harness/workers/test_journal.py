"""The journal: entries outlive their writer, and are whole."""

import os
import signal
from collections.abc import Iterator

import pytest

from attnfuzz.harness.memory.allocation import Allocation
from attnfuzz.harness.workers.journal import Fault, Journal, LaunchRecord
from attnfuzz.kernels.native.fault_recorder import FAULT_RECORD
from attnfuzz.reference.case import Guard


@pytest.fixture
def journal() -> Iterator[Journal]:
    journal = Journal.create()
    yield journal
    journal.close()


def test_the_last_entry_is_read(journal: Journal) -> None:
    assert journal.read() == b""
    for entry in (b"one", b"a longer entry", b"x"):
        journal.write(entry)
        assert journal.read() == entry
    journal.clear()
    assert journal.read() == b""


def test_another_mapping_of_the_same_file_reads_it(journal: Journal) -> None:
    other = Journal(os.dup(journal.fd))
    journal.write(b"launch")
    assert other.read() == b"launch"
    other.close()


@pytest.mark.slow
def test_an_entry_outlives_its_writer(journal: Journal) -> None:
    pid = os.fork()
    if pid == 0:
        journal.write(b"the last launch")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert journal.read() == b"the last launch"


def test_a_torn_write_leaves_the_entry_before_it(journal: Journal) -> None:
    journal.write(b"whole")
    journal.write(b"also whole")
    start = journal._slot(3)
    journal._map[start : start + 40] = b"\xff" * 40
    assert journal.read() == b"also whole"


def test_the_size_of_the_journal_cannot_be_changed(journal: Journal) -> None:
    size = os.fstat(journal.fd).st_size
    for wrong in (0, size - 1, size + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(journal.fd, wrong)
    journal.write(b"still there")
    assert journal.read() == b"still there"


@pytest.mark.parametrize("byte", [0x01, 0x7F, 0xFF])
def test_an_overwritten_journal_is_read_within_bounds(journal: Journal, byte: int) -> None:
    journal._map[:] = bytes([byte]) * len(journal._map)
    assert journal.read() == b""
    assert journal.entries == int.from_bytes(bytes([byte]) * 8, "little")
    journal.clear()
    assert journal.fault() is None
    journal.write(b"the next launch")
    assert journal.read() == b"the next launch"


def test_an_entry_that_does_not_fit_is_refused(journal: Journal) -> None:
    journal.write(b"fits")
    with pytest.raises(ValueError, match="at most 1048576 fit"):
        journal.write(bytes((1 << 20) + 1))
    assert journal.read() == b"fits"


def test_a_fault_counts_once_it_is_complete(journal: Journal) -> None:
    FAULT_RECORD.pack_into(journal._map, 0, signal.SIGSEGV, 1, 0x7F00DEAD0000, 2, 0)
    assert journal.fault() is None
    FAULT_RECORD.pack_into(journal._map, 0, signal.SIGSEGV, 1, 0x7F00DEAD0000, 2, 1)
    assert journal.fault() == Fault(signal=signal.SIGSEGV, code=1, address=0x7F00DEAD0000, access=2)


def test_a_launch_record_comes_back_as_it_was() -> None:
    tensor = Allocation("q", 1 << 46, 64, (2, 8), "float32", 4, (8, 1), Guard.LEFT)
    record = LaunchRecord(
        step=2, mode="decode", kernel="f", scalars={"a": 1, "b": 0.5, "c": "x", "d": None, "e": True}, tensors=[tensor]
    )
    assert LaunchRecord.decode(record.encode()) == record
