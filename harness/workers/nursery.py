"""The nursery: the process that forks workers. It imports everything once and never starts a thread.

Run as `python -m attnfuzz.harness.workers.nursery FD`, where FD is a socket to the parent, or forked by its parent
(`attnfuzz.harness.workers.forked`). It exits when the parent does, and its workers with it.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from attnfuzz.harness.workers import stacks, worker
from attnfuzz.harness.workers.journal import Journal
from attnfuzz.harness.workers.tethered import die_with
from attnfuzz.kernels.building.library_cache import BuildFailed, NoCompiler
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.fault_recorder import install_fault_recorder
from attnfuzz.kernels.native.stack_writer import install_stack_writer
from attnfuzz.reference.user_error import UserError

MESSAGE_BYTES = 1 << 17
"""Maximum size of a message to or from the nursery."""

Life = Callable[[socket.socket, Journal, int], None]
"""Runs a worker, given its channel, its journal and the file for its output."""

LifeOf = Callable[[Sequence[str]], Life]
"""Returns the function that runs a worker with the arguments of a Fork."""

Hook = str | tuple[str, ...]
"""A function to call before forking: "module:function", or that and its arguments."""

_LOOK_FOR_PARENT_SECONDS = 1.0

SECONDS_TO_DIE = 10.0
"""Time limit for the end of a killed worker. On a GPU the driver takes seconds to clean up."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt (malloc.h of glibc)."""

_FREED_MEMORY_KEPT = 128 << 20
"""Bytes of freed memory that a worker may keep."""

_OBJECTS_BEFORE_COLLECTION = 10_000
"""Number of new objects after which young garbage is collected (default: 700 to 2,000)."""


class Setup(msgspec.Struct, tag=True, frozen=True):
    """The first message: the modules to import, and the path. `handler` and `begin` are "module:function".

    `preload` is called once. `begin` is called in each worker before it is ready. `environment` is added to that of the
    nursery.
    """

    handler: str
    preload: Sequence[Hook]
    path: list[str]
    begin: str | None = None
    environment: dict[str, str] = {}


class Fork(msgspec.Struct, tag=True, frozen=True):
    """Requests a worker with these `arguments`.

    It comes with three descriptors: the worker's channel, its journal, and the file for its output.
    """

    arguments: Sequence[str] = ()


class Reap(msgspec.Struct, tag=True, frozen=True):
    """Requests the exit status of a worker that has exited or is about to.

    One that does not exit in SECONDS_TO_DIE is reaped later: its driver may never let go of it.
    """

    pid: int


class Bury(msgspec.Struct, tag=True, frozen=True):
    """Announces a worker that is about to exit and whose status is not needed."""

    pid: int


class Reaped(msgspec.Struct, tag=True, frozen=True):
    """A worker's waitpid status, or None if it has not exited."""

    status: int | None


class Failed(msgspec.Struct, tag=True, frozen=True):
    """An import or a preload hook raised. `advice` is a line for an error that the user can fix, else ""."""

    trace: str
    advice: str = ""


Order = Setup | Fork | Reap | Bury
Answer = Reaped | Failed
_orders: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)


def run(control: socket.socket) -> None:
    """Import, then fork and reap until the parent closes the connection. Ends this process, unless imports fail."""
    # Ctrl-C is handled by the parent; workers inherit this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _shun_core_dumps()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    message = control.recv(MESSAGE_BYTES)
    setup = _orders.decode(message) if message else None
    if not isinstance(setup, Setup):
        return
    try:
        handler, begin = _prepare(setup)
        recorder, stack_writer = _signal_handlers()
    except BaseException as error:  # noqa: BLE001 - it imports user code: the parent shows any error
        advice = str(error) if isinstance(error, UserError) else ""
        control.send(msgspec.json.encode(Failed(traceback.format_exc()[-MESSAGE_BYTES // 2 :], advice)))
        return
    # All workers share these objects: garbage collection would only copy their pages.
    gc.collect()
    gc.freeze()
    _spend_memory_on_speed()

    def life_of(arguments: Sequence[str]) -> Life:
        return partial(
            worker.serve, handler, begin=partial(begin, *arguments), recorder=recorder, stack_writer=stack_writer
        )

    _serve(control, life_of)
    # Interpreter shutdown is slow, and the parent waits.
    os._exit(0)


def _spend_memory_on_speed() -> None:
    """Let workers keep freed memory for the next tensor, and collect garbage less often.

    By default, glibc maps each block above 128 KiB anew, and returns free memory at the end of the heap. The tensors of
    a case have hundreds of KiB, and would be faulted in again, page by page. This saves 8% of CPU time per verdict.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # in glibc only
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _FREED_MEMORY_KEPT // 2)
        mallopt(_M_TRIM_THRESHOLD, _FREED_MEMORY_KEPT)
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)


def _prepare(setup: Setup) -> tuple[worker.Handler, Callable[..., None]]:
    sys.path[:] = setup.path
    os.environ.update(setup.environment)
    import torch  # noqa: PLC0415 - the parent waits for this import: errors in it must be reported

    torch.set_num_threads(1)
    # CUDA builds of torch start idle threads on import, which no worker needs.
    before = _threads()
    for hook in setup.preload:
        function, *arguments = (hook,) if isinstance(hook, str) else hook
        resolved(function)(*arguments)
    handler = resolved(setup.handler)
    begin = resolved(setup.begin) if setup.begin is not None else lambda *_: None
    threads = _threads()
    if len(threads) > len(before):
        loaded = (*(hook if isinstance(hook, str) else " ".join(hook) for hook in setup.preload), setup.handler)
        raise RuntimeError(
            f"{len(threads) - len(before)} threads run after {', '.join(loaded)} was loaded "
            f"({', '.join(threads)}): a fork would lose them, and hang on their locks; start threads in the handler "
            "instead"
        )
    return handler, begin


def _threads() -> list[str]:
    """Return the names of the threads of this process, including the main one."""
    return sorted((task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir())


def _signal_handlers() -> tuple[worker.FaultRecorder, stacks.Writer] | tuple[None, None]:
    """Return the recorder of faulting addresses and the writer of native stacks, unless they can't be compiled."""
    try:
        build.load()
    except (NoCompiler, BuildFailed):
        return None, None
    return install_fault_recorder, install_stack_writer


def named(function: Callable[..., Any]) -> str:
    """Return a function's name as "module:function"."""
    return f"{function.__module__}:{function.__name__}"


def resolved(name: str) -> Callable[..., Any]:
    """Return the function called "module:function", which is imported."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _serve(control: socket.socket, life_of: LifeOf) -> None:
    workers: set[int] = set()
    try:
        _obey(control, life_of, workers)
    finally:
        for pid in workers:
            _end_group(pid)


def _obey(control: socket.socket, life_of: LifeOf, workers: set[int]) -> None:
    """Carry out the parent's orders until it is gone. `workers` are those not reaped yet."""
    parent = os.getppid()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    leaving: set[int] = set()
    while True:
        # The socket closes with the parent, unless another process inherited the parent's end.
        while not poll.poll(_LOOK_FOR_PARENT_SECONDS * 1e3):
            if os.getppid() != parent:
                return
            _bury(leaving, workers)
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 3)
        if not message:
            return
        order = _orders.decode(message)
        if isinstance(order, Fork):
            workers.add(_fork(control, life_of(order.arguments), descriptors))
        elif isinstance(order, Reap):
            status = _reaped(order.pid) if _ends(order.pid, SECONDS_TO_DIE) else None
            if status is None:
                leaving.add(order.pid)
            else:
                workers.discard(order.pid)
            control.send(msgspec.json.encode(Reaped(status)))
        elif isinstance(order, Bury):
            leaving.add(order.pid)
        _bury(leaving, workers)


def _ends(pid: int, seconds: float) -> bool:
    """Return whether a worker exits within this time. It is not reaped."""
    until, pause = time.monotonic() + seconds, 1e-4
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() >= until:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 1e-2)
    return True


def _reaped(pid: int) -> int:
    """Reap a worker that has exited and return its status. Processes that a kernel forked in it are killed."""
    # Until it is reaped, neither its id nor that of its group is reused.
    _end_group(pid)
    return os.waitpid(pid, 0)[1]


def _bury(leaving: set[int], workers: set[int]) -> None:
    """Reap the leaving workers that have ended."""
    for pid in tuple(leaving):
        if _ends(pid, 0.0):
            _reaped(pid)
            leaving.remove(pid)
            workers.discard(pid)


def _end_group(pid: int) -> None:
    # A worker that exited early has no group.
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _fork(control: socket.socket, serve: Life, descriptors: list[int]) -> int:
    """Fork a worker and return its process id, -1 on failure."""
    channel, journal, output = descriptors
    nursery = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        # The parent sees the channel closed without a message, and shows this.
        traceback.print_exc()
        pid = -1
    if pid == 0:
        try:
            control.close()
            die_with(nursery)
            # A kernel that signals its group only hits itself, and its forks can be killed with it.
            os.setpgid(0, 0)
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            serve(socket.socket(fileno=channel), Journal(journal), output)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a forked child must never return into its parent's loop
            traceback.print_exc()
            os._exit(1)
    for descriptor in descriptors:
        os.close(descriptor)
    return pid


def _shun_core_dumps() -> None:
    """Set the limit that disables both core files and core handlers (core(5)), because deaths must be quick."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (1 if hard else 0, hard))


if __name__ == "__main__":
    run(socket.socket(fileno=int(sys.argv[1])))
