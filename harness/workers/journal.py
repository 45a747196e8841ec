"""The journal: memory that a worker shares with its parent: its last launch, and the fault or the place of its end."""

import ctypes
import fcntl
import mmap
import os
import struct
from typing import Self

import msgspec

from attnfuzz.harness.memory.allocation import Allocation
from attnfuzz.kernels.native.fault_recorder import FAULT_RECORD
from attnfuzz.reference import foreign

_FAULT_BYTES = 64
_NUMBER = struct.Struct("<Q")
_ENTRY_BYTES = 1 << 20
_ENTRIES = _FAULT_BYTES + _NUMBER.size
_STACKS = _ENTRIES + 2 * (_NUMBER.size + _ENTRY_BYTES)
_STACK_BYTES = 1 << 16
_SIZE = _STACKS + _STACK_BYTES
"""The fault record, the number of the last entry, two entries, written in turn: each its size and its bytes, and the
stacks of a worker that hangs.
"""


class Fault(msgspec.Struct, frozen=True):
    """The signal handler's record: the fields of siginfo_t, and whether the access was a read (1) or a write (2)."""

    signal: int
    code: int
    address: int
    access: int


class LaunchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that is about to be launched: the entry point, its scalar arguments, and the place of each tensor.

    `call` counts the launches of the step, from 0. `run` names the run of the case, in words that end a sentence; it is
    empty for the first run. `way` says how a server reaches the call, if the backend says so. `broken` lists contract
    violations of the call that were detected before its launch.
    """

    step: int
    mode: str
    kernel: str
    scalars: dict[str, int | float | str | bool | None]
    tensors: list[Allocation]
    call: int = -1
    run: str = ""
    way: str = ""
    broken: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Encode as a journal entry."""
        return _encoder.encode(self)

    @classmethod
    def decode(cls, entry: bytes) -> Self:
        """Return the record in a journal entry. Raises msgspec.DecodeError if the entry is something else."""
        return foreign.decode_json(entry, type=cls)


_encoder = msgspec.json.Encoder()


class Journal:
    """A fault record and the last entry, in an anonymous file that both processes map.

    A new entry replaces the last but one, and counts only once its number is set after it. So the reader finds a
    complete entry whenever the writer dies.
    """

    def __init__(self, fd: int) -> None:
        """Map the journal at the descriptor `fd`, which then belongs to the journal."""
        self.fd = fd
        self._map = mmap.mmap(fd, _SIZE)
        self._first_byte = ctypes.c_ubyte.from_buffer(self._map)
        self._sequence = 0

    @classmethod
    def create(cls) -> Self:
        """Return an empty journal."""
        fd = os.memfd_create("attnfuzz-journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, _SIZE)
        # A kernel that truncated it would kill the parent, which reads it, with SIGBUS.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return cls(fd)

    @property
    def fault_address(self) -> int:
        """The fault record's address in this process: the argument of `install_fault_recorder`."""
        return ctypes.addressof(self._first_byte)

    def write(self, entry: bytes) -> None:
        """Replace the last entry. Raises ValueError for an entry too large for the journal."""
        if len(entry) > _ENTRY_BYTES:
            raise ValueError(f"a journal entry of {len(entry)} bytes: at most {_ENTRY_BYTES} fit")
        self._sequence += 1
        slot = self._slot(self._sequence)
        start = slot + _NUMBER.size
        self._map[start : start + len(entry)] = entry
        _NUMBER.pack_into(self._map, slot, len(entry))
        _NUMBER.pack_into(self._map, _FAULT_BYTES, self._sequence)

    def clear(self) -> None:
        """Clear the last entry and the fault: no launch is under way."""
        self.write(b"")
        self._map[:_FAULT_BYTES] = bytes(_FAULT_BYTES)

    @property
    def entries(self) -> int:
        """The number of entries written so far, by either process."""
        return int(_NUMBER.unpack_from(self._map, _FAULT_BYTES)[0])

    def read(self) -> bytes:
        """Return the last complete entry, or b"" if there is none or it was overwritten."""
        slot = self._slot(self.entries)
        (size,) = _NUMBER.unpack_from(self._map, slot)
        start = slot + _NUMBER.size
        return self._map[start : start + size] if size <= _ENTRY_BYTES else b""

    def fault(self) -> Fault | None:
        """Return the signal handler's record, or None."""
        signal, code, address, access, done = FAULT_RECORD.unpack_from(self._map, 0)
        return Fault(signal, code, address, access) if done else None

    def open_stacks(self) -> int:
        """Return a descriptor for the worker's stacks, which are written one after the other. It stays open."""
        # With a position of its own: the parent has the journal's descriptor too.
        descriptor = os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)
        os.lseek(descriptor, _STACKS, os.SEEK_SET)
        return descriptor

    @property
    def stacks(self) -> str:
        """The stacks that the worker has written."""
        written = self._map[_STACKS : _STACKS + _STACK_BYTES]
        return written.partition(b"\0")[0].decode("latin-1")

    def close(self) -> None:
        """Unmap the journal and close its descriptor."""
        del self._first_byte
        self._map.close()
        os.close(self.fd)

    @staticmethod
    def _slot(sequence: int) -> int:
        return _ENTRIES + (sequence % 2) * (_NUMBER.size + _ENTRY_BYTES)
