"""The process that workers are forked from: everything is imported once, and no thread ever runs in it.

Run as `python -m attnfuzz.harness.workers.nursery FD`, where FD is a socket to the parent. It ends when the parent
does, and its workers with it.
"""

import contextlib
import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from attnfuzz.harness.workers import worker
from attnfuzz.harness.workers.journal import Journal
from attnfuzz.harness.workers.tethered import die_with
from attnfuzz.kernels.library_cache import BuildFailed, NoCompiler
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.fault_recorder import install_fault_recorder
from attnfuzz.reference.user_error import UserError

MESSAGE_BYTES = 1 << 17
"""Of a message to or from the nursery, at most."""

Life = Callable[[socket.socket, Journal, int], None]
"""What a worker does with its channel, its journal and the file for its output."""

Hook = str | tuple[str, ...]
"""A function that is called before workers are forked: "module:function", or that and its arguments."""

_LOOK_FOR_PARENT_SECONDS = 1.0


class Setup(msgspec.Struct, tag=True, frozen=True):
    """The first message: what to import, from where. `handler` and `begin` are "module:function".

    `preload` is called once. `begin` is called in each worker with `arguments`, before it is ready.
    """

    handler: str
    preload: Sequence[Hook]
    path: list[str]
    begin: str | None = None
    arguments: Sequence[str] = ()


class Fork(msgspec.Struct, tag=True, frozen=True):
    """Asks for a worker; comes with three descriptors: its channel, its journal, and the file for its output."""


class Reap(msgspec.Struct, tag=True, frozen=True):
    """Asks for the exit status of a worker that has ended, or is about to."""

    pid: int


class Bury(msgspec.Struct, tag=True, frozen=True):
    """Tells of a worker that is about to end, and whose status will not be asked for."""

    pid: int


class Reaped(msgspec.Struct, tag=True, frozen=True):
    """A worker's status, as waitpid gives it."""

    status: int


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The nursery can't start: an import or a preload hook raised.

    `advice` is a line for the user, if it is an error that a user can fix.
    """

    trace: str
    advice: str = ""


Order = Setup | Fork | Reap | Bury
Answer = Reaped | Failed
_orders: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)


def main() -> None:
    """Import, then fork and reap until the parent hangs up."""
    # Ctrl-C is the parent's to handle; workers inherit this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _shun_core_dumps()
    control = socket.socket(fileno=int(sys.argv[1]))
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    setup = _orders.decode(control.recv(MESSAGE_BYTES))
    if not isinstance(setup, Setup):
        return
    try:
        handler, begin = _prepare(setup)
        recorder = _fault_recorder()
    except BaseException as error:  # noqa: BLE001 - user code is imported here: whatever it raises is the parent's to show
        advice = str(error) if isinstance(error, UserError) else ""
        control.send(msgspec.json.encode(Failed(traceback.format_exc()[-MESSAGE_BYTES // 2 :], advice)))
        return
    # What is alive now is shared by all workers: collecting garbage in it would only copy its pages.
    gc.collect()
    gc.freeze()
    _serve(control, partial(worker.serve, handler, begin=begin, recorder=recorder))
    # Interpreter shutdown would take longer than everything that the parent still waits for.
    os._exit(0)


def _prepare(setup: Setup) -> tuple[worker.Handler, worker.Begin]:
    sys.path[:] = setup.path
    import torch  # noqa: PLC0415 - the parent waits for this import: errors in it must be reported

    torch.set_num_threads(1)
    # Builds of torch for CUDA start some as they are imported, which idle and which no worker needs.
    before = _threads()
    for hook in setup.preload:
        function, *arguments = (hook,) if isinstance(hook, str) else hook
        _resolve(function)(*arguments)
    handler = _resolve(setup.handler)
    begin = partial(_resolve(setup.begin), *setup.arguments) if setup.begin is not None else _nothing
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
    """The names of the threads of this process, its first one included."""
    return sorted((task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir())


def _nothing() -> None:
    """Begin without a hook."""


def _fault_recorder() -> worker.FaultRecorder | None:
    """What notes faulting addresses; None on a machine that can't compile it, where deaths go without an address."""
    try:
        build.load()
    except (NoCompiler, BuildFailed):
        return None
    return install_fault_recorder


def named(function: Callable[..., Any]) -> str:
    """Return the name by which a nursery finds a function of a module."""
    return f"{function.__module__}:{function.__name__}"


def _resolve(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _serve(control: socket.socket, serve: Life) -> None:
    workers: set[int] = set()
    try:
        _obey(control, serve, workers)
    finally:
        for pid in workers:
            _end_group(pid)


def _obey(control: socket.socket, serve: Life, workers: set[int]) -> None:
    """Do what the parent orders until it is gone. `workers` are those that have not been waited for."""
    parent = os.getppid()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    leaving: set[int] = set()
    while True:
        # The socket tells when the parent is gone, unless some other process inherited the parent's end of it.
        while not poll.poll(_LOOK_FOR_PARENT_SECONDS * 1e3):
            if os.getppid() != parent:
                return
            _bury(leaving, workers)
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 3)
        if not message:
            return
        order = _orders.decode(message)
        if isinstance(order, Fork):
            workers.add(_fork(control, serve, descriptors))
        elif isinstance(order, Reap):
            status = _wait_for(order.pid)
            workers.discard(order.pid)
            control.send(msgspec.json.encode(Reaped(status)))
        elif isinstance(order, Bury):
            leaving.add(order.pid)
        _bury(leaving, workers)


def _wait_for(pid: int) -> int:
    """The status of a worker that ends. The processes that a kernel forked off in it end with it."""
    # Until it is waited for, neither its id nor that of its group is reused.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    _end_group(pid)
    return os.waitpid(pid, 0)[1]


def _bury(leaving: set[int], workers: set[int]) -> None:
    """Forget those that have ended."""
    for pid in tuple(leaving):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            _wait_for(pid)
            leaving.remove(pid)
            workers.discard(pid)


def _end_group(pid: int) -> None:
    # One that ended before it had a group has none.
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _fork(control: socket.socket, serve: Life, descriptors: list[int]) -> int:
    """Fork a worker; its process id, -1 if there can't be one."""
    channel, journal, output = descriptors
    nursery = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        # The parent sees the channel closed without a word, and shows this.
        traceback.print_exc()
        pid = -1
    if pid == 0:
        try:
            control.close()
            die_with(nursery)
            # A kernel that signals its group means itself, and what it forks off can be ended with it.
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
    """Set the one limit that keeps both core files and core handlers from running (core(5)): deaths must be quick."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (1 if hard else 0, hard))


if __name__ == "__main__":
    main()
