"""Stands for a handler of a worker: handlers that die in every way. The nursery imports this module by its name."""

import ctypes
import os
import signal
import sys
import threading
import time

import msgspec
import torch

from attnfuzz.harness.memory.arena import Arena
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.harness.workers import channel, worker
from attnfuzz.harness.workers.gpu_gone import GpuGone
from attnfuzz.harness.workers.journal import Journal, LaunchRecord
from attnfuzz.harness.workers.sticky import exit_code_of
from attnfuzz.kernels.releases.errors import ReleaseError
from attnfuzz.reference.case import Guard, Outputs

_arena = Arena()


class Touch(msgspec.Struct):
    """One access of 4 bytes to tensor `name`, of `shape` and dtype int32, `offset` bytes from its start."""

    name: str
    shape: tuple[int, ...]
    offset: int
    guard: Guard = Guard.RIGHT
    write: bool = False
    before: tuple[int, ...] = ()
    """Sizes, in elements, of tensors that earlier cases had, in the same memory."""


def touch(request: bytes, journal: Journal) -> bytes:
    """Make the access of a Touch, with a launch on record; reply with the damage that it did."""
    task = msgspec.json.decode(request, type=Touch)
    for size in task.before:
        with GuardedMemory(_arena, task.guard, Outputs.POISONED) as earlier:
            earlier.tensor("earlier", (size,), torch.int32).zero_()
    with GuardedMemory(_arena, task.guard, Outputs.POISONED) as memory:
        memory.tensor("q", (4, 8, 64), torch.bfloat16)
        tensor = memory.tensor(task.name, task.shape, torch.int32)
        memory.tensor("empty", (0, 8), torch.bfloat16)
        record = LaunchRecord(
            step=1, mode="decode", kernel="some_kernel", scalars={"batch": 4}, tensors=memory.allocations()
        )
        journal.write(record.encode())
        address = tensor.data_ptr() + task.offset
        if task.write:
            ctypes.memset(address, 1, 4)
        else:
            ctypes.string_at(address, 4)
        return "; ".join(str(damage) for damage in memory.damage().result()).encode()


def _wait(order: str, argument: str, journal: Journal) -> None:
    """Take time: after saying farewell, launching something each tenth of a second, or doing nothing."""
    match order:
        case "linger":
            assert worker._line is not None
            worker._line.send(channel.MessageKind.LEAVING, argument.encode())
            time.sleep(60)
        case "launch":
            for _ in range(round(float(argument) * 10)):
                journal.write(b"")
                time.sleep(0.1)
        case "sleep":
            time.sleep(float(argument))
        case "loop":
            _compute()
        case "pause":
            ctypes.CDLL(None).pause()
        case "deaf":
            signal.pthread_sigmask(signal.SIG_SETMASK, range(1, 65))
            _compute()
        case "in_a_thread":
            thread = threading.Thread(target=_compute)
            thread.start()
            thread.join()


def _leave_behind(order: str, argument: str, journal: Journal) -> bytes:
    """Leave something in or beside this process; reply with the id of the process, if it is one."""
    match order:
        case "fork":
            child = os.fork()
            if child == 0:
                time.sleep(600)
            if argument == "abort":
                os.write(2, str(child).encode())
                os.abort()
            return str(child).encode()
        case "compute":
            threading.Thread(target=_compute, daemon=True).start()
        case "wait":
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        case "flood":
            for _ in range(int(argument)):
                os.write(1, bytes(1 << 20))
            os.write(1, b"the end")
            os.abort()
        case "print":
            print(argument)  # noqa: T201 - the test is about what workers print
        case "journal":
            journal.write(argument.encode())
    return f"{os.getpid()} {argument}".encode()


def _compute() -> None:
    while True:
        pass


def obey(request: bytes, journal: Journal) -> bytes:
    """Do what the request says; what is no order is sent back, with the worker's process id before it."""
    order, _, argument = request.decode().partition(" ")
    match order:
        case "kill":
            os.kill(os.getpid(), int(argument))
        case "abort":
            os.write(2, b"terminate called after throwing an instance of 'Oops'\n")
            os.abort()
        case "leave":
            os._exit(int(argument))
        case "go":
            worker.leave(int(argument))
        case "linger" | "launch" | "sleep" | "loop" | "pause" | "deaf" | "in_a_thread":
            _wait(order, argument, journal)
        case "fork" | "compute" | "wait" | "flood" | "print" | "journal":
            return _leave_behind(order, argument, journal)
        case "raise":
            raise KeyError(argument)
        case "refuse":
            refuse(argument)
        case "exit":
            sys.exit(argument)
        case "lose_gpu":
            lose_gpu()
    return f"{os.getpid()} {argument}".encode()


def ready() -> None:
    """A preload hook that works."""
    signal.getsignal(signal.SIGINT)


def broken() -> None:
    """A preload hook that raises."""
    raise RuntimeError("the preload hook is broken")


def aborting() -> None:
    """A preload hook that dies as a native library does: with a message, a long stack, and SIGABRT."""
    os.write(2, b"terminate called: no such device\n" + b"in PyImport_ImportModuleLevelObject\n" * 400)
    os.abort()


def threaded() -> None:
    """A preload hook that leaves a thread behind."""
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


_begun: list[str] = []


def begin(*arguments: str) -> None:
    """A begin hook: keeps what it was called with, in which process, and starts the thread that only a worker may."""
    _begun.extend((str(os.getpid()), *arguments))
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


def warm(*arguments: str) -> None:
    """A preload hook: keeps what it was called with, in which process, after what other hooks kept."""
    _begun.extend((*(["then"] if _begun else []), str(os.getpid()), *arguments))


def refuse(words: str) -> None:
    """A preload hook that finds what a user can mend."""
    raise ReleaseError(words)


def begin_badly() -> None:
    """A begin hook that raises."""
    raise RuntimeError("there is no device here")


def lose_gpu() -> None:
    """A begin hook that finds no GPU."""
    raise GpuGone("no CUDA context can be created (No CUDA GPUs are available)")


def ask_gpu() -> None:
    """A begin hook to which the GPU's driver never answers."""
    with worker.asking_gpu():
        time.sleep(600)


def break_context() -> None:
    """A begin hook whose CUDA context breaks."""
    worker.leave(exit_code_of(719))


def begin_deadly() -> None:
    """A begin hook that ends the process."""
    os.write(2, b"the driver gave up\n")
    os._exit(3)


def begun(request: bytes, _: Journal) -> bytes:
    """Reply with this process, what `begin` was called with, and the value of an environment variable."""
    return " ".join((str(os.getpid()), *_begun, os.environ.get(request.decode(), ""))).encode()
