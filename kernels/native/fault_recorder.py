"""A signal handler that records a fatal fault in shared memory before the process dies of it."""

import struct

from attnfuzz.kernels.native import build

FAULT_RECORD = struct.Struct("<IiQII")
"""signo, si_code, fault address, access (0 unknown, 1 read, 2 write), done (1 once the rest is written)."""


def install_fault_recorder(address: int) -> None:
    """Record SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT of this process at `address` (FAULT_RECORD, 8-byte aligned).

    The memory must be zero and stay mapped. The process still dies of its signal. An address that no pointer can hold
    is recorded as 0 with si_code 128 (SI_KERNEL). Replaces every handler of these signals, including tvm_ffi's; forked
    children inherit it. Raises ValueError for a null or misaligned address.
    """
    build.load().install_fault_recorder(address)
