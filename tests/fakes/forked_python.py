"""Stands for starting a Python process: forks it from one that has imported torch.

Starting a nursery or a job takes 2 s of CPU time, nearly all of it for the import of torch. Within
`forked_processes`, what this process starts as a module of FORKED, as a script by its path, or as isolated code
(`-I -c`), is forked off a template that has imported everything. To its parent it is the same: a child with a Popen,
and with the descriptors, environment and session that were asked for. A forked job or command line forks likewise.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

TETHERED = "attnfuzz.harness.workers.tethered"
NURSERY = "attnfuzz.harness.workers.nursery"
FORKED = (TETHERED, NURSERY, "attnfuzz.harness.cli.main", "attnfuzz.kernels.gpu.compilation")
IMPORTED = (
    "attnfuzz.harness.campaign.run",
    "attnfuzz.harness.campaign.job",
    "attnfuzz.harness.search.hunter",
    "attnfuzz.harness.inside.execute",
    "attnfuzz.harness.inside.explained",
)
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""As a nursery has it: one thread, and no question to CUDA's driver, which would start others."""

HANDLERS: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""As an interpreter begins."""

MESSAGE_BYTES = 1 << 18
FREE_DESCRIPTORS = 512
"""Those of the test that a process is given lie below, its copies of them above."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)


_execute_child: Callable[..., None] = subprocess.Popen._execute_child  # type: ignore[attr-defined]


@contextmanager
def forked_processes(*also: str) -> Iterator[None]:
    """Fork our processes and scripts, off one template for all tests of this process that has imported `also`."""
    with _executed_by(_template(also)):
        yield


class _Template:
    """The process to fork from, seen from its parent. `control` is the socket to it, None until it is needed.

    `also` are modules that it imports besides ours.
    """

    def __init__(self, control: socket.socket | None = None, also: Sequence[str] = ()) -> None:
        self._control = control
        self._also = also
        self._lock = threading.Lock()

    def fork(self, order: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Fork a child of this process, and return its id."""
        with self._lock:
            if self._control is None:
                self._control = _forked(_template(()), self._also) if self._also else _started()
            # The template's child forks it and ends. It then becomes a child of its nearest ancestor that adopts.
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._control, [json.dumps(order).encode()], descriptors)
                return int(self._control.recv(MESSAGE_BYTES))
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


@contextmanager
def started_processes() -> Iterator[None]:
    """Start processes, within `forked_processes`."""
    with mock.patch.object(subprocess.Popen, "_execute_child", _execute_child):
        yield


@functools.cache
def _template(also: Sequence[str]) -> _Template:
    return _Template(also=also)


def _forked(template: _Template, also: Sequence[str]) -> socket.socket:
    """Fork a template off another one, which saves the import of torch. It ends when this process does, like that."""
    control, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with remote:
        template.fork({"also": also}, [remote.fileno()])
    atexit.register(control.close)
    return control


def _started() -> socket.socket:
    control, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with remote, started_processes():
        # It ends when this process does: its socket is closed then.
        template = subprocess.Popen(
            [sys.executable, __file__, str(remote.fileno()), json.dumps(sys.path)],
            pass_fds=[remote.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **ENVIRONMENT},
        )
    atexit.register(template.wait)
    atexit.register(control.close)
    return control


def _executed_by(template: _Template) -> AbstractContextManager[object]:
    """Replace the method of Popen that starts a process."""
    signature = inspect.signature(_execute_child)

    def execute_child(popen: subprocess.Popen[Any], *arguments: Any) -> None:
        given = signature.bind(popen, *arguments).arguments
        if not _can_fork(given["args"]):
            _execute_child(popen, *arguments)
            return
        sys.audit("subprocess.Popen", given["executable"], given["args"], given["cwd"], given["env"])
        pipes = [given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        theirs = [own if own >= 0 else number for number, own in enumerate((pipes[0], pipes[3], pipes[5]))]
        order = {
            "arguments": list(map(os.fspath, given["args"][1:])),
            "folder": os.fspath(given["cwd"] or Path.cwd()),
            "environment": dict(os.environ if given["env"] is None else given["env"]),
            "session": given["start_new_session"],
            "group": given["process_group"],
            "descriptors": [0, 1, 2, *given["pass_fds"]],
        }
        popen.pid = template.fork(order, [*theirs, *given["pass_fds"]])
        popen._child_created = True  # type: ignore[attr-defined]
        popen._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    return mock.patch.object(subprocess.Popen, "_execute_child", execute_child)


def _can_fork(command: str | Sequence[str | Path]) -> bool:
    """Whether a command runs a module of FORKED, a script, or isolated code. Threads start nurseries untethered."""
    if isinstance(command, str) or len(command) < 2 or command[0] != sys.executable:
        return False
    first, *others = [os.fspath(each) for each in command[1:]]
    match first, others:
        case "-m", [module, *_]:
            return module in FORKED
        case "-I", ["-c", *_]:
            return True
    return first.endswith(".py")


def _serve(control: socket.socket, parent: int) -> None:
    """Fork what is ordered, until the parent hangs up."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 64)
        if not message:
            return
        reading, writing = os.pipe()
        between = os.fork()
        if not between:
            adopted = os.getpid()
            if os.fork():
                os._exit(0)
            control.close()
            order = json.loads(message)
            # Before the answer, as Popen returns after both.
            if order.get("session"):
                os.setsid()
            if order.get("group") == 0:
                os.setpgid(0, 0)
            os.write(writing, str(os.getpid()).encode())
            os.close(reading)
            os.close(writing)
            if "also" in order:
                _become_template(socket.socket(fileno=descriptors[0]), parent, order["also"])
            _be(order, descriptors, parent, adopted)
        os.waitpid(between, 0)
        os.close(writing)
        pid_of_child = os.read(reading, 20)
        # Before the answer: the end of a child shows at once, since no other process has its descriptors.
        for descriptor in (reading, *descriptors):
            os.close(descriptor)
        control.send(pid_of_child)


def _become_template(control: socket.socket, parent: int, also: Sequence[str]) -> NoReturn:
    """Import more, and serve as the template that this process was forked off does."""
    _prepare(also)
    _serve(control, parent)
    os._exit(0)


def _be(order: dict[str, Any], descriptors: Sequence[int], parent: int, before: int) -> NoReturn:
    """Be the process that was ordered."""
    while os.getppid() == before:
        os.sched_yield()
    if os.getppid() != parent:
        os._exit(0)
    for number, handler in HANDLERS.items():
        signal.signal(number, handler)
    _take(descriptors, order["descriptors"])
    # The template's own streams remember what kind of files theirs are.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - a descriptor, and for the whole process
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115 - same
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    folders = order["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [each for each in folders if each and each not in sys.path]
    if NURSERY in order["arguments"]:
        _run(order["arguments"])
    with _executed_by(_Template(_template_of_this())):
        _run(order["arguments"])


def _take(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Have these descriptors, by these numbers, and no others."""
    for index, descriptor in enumerate(descriptors):
        os.dup2(descriptor, FREE_DESCRIPTORS + index)
    os.closerange(0, FREE_DESCRIPTORS)
    for index, number in enumerate(numbers):
        os.dup2(FREE_DESCRIPTORS + index, number)
    os.closerange(FREE_DESCRIPTORS, FREE_DESCRIPTORS + len(descriptors))


def _template_of_this() -> socket.socket:
    """Fork a template off this process, which ends with it."""
    parent = os.getpid()
    control, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        remote.close()
        return control
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    control.close()
    # A signal to the group of processes, like Ctrl-C, is for the process that was ordered.
    for number in HANDLERS:
        signal.signal(number, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    _serve(remote, parent)
    os._exit(0)


def _run(arguments: Sequence[str]) -> NoReturn:
    """Run the module, and end as the interpreter does, but for what takes it 0.3 s with torch."""
    status: int | str | None = 0
    try:
        if arguments[0] == "-m":
            sys.path[0], sys.argv = str(Path.cwd()), list(arguments[1:])
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif arguments[0] == "-I":
            _isolate()
            sys.argv = ["-c", *arguments[3:]]
            exec(arguments[2], {"__name__": "__main__"})  # noqa: S102 - the code of a command line
        else:
            sys.path[0], sys.argv = str(Path(arguments[0]).parent), list(arguments)
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as ended:
        status = ended.code
    except BaseException:  # noqa: BLE001 - as the interpreter does at the end of a program
        traceback.print_exc()
        status = 1
    if isinstance(status, str):
        sys.stderr.write(f"{status}\n")
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def _isolate() -> None:
    """Forget attnfuzz, which an isolated script has to do without, and the folders that tests and users add."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "attnfuzz"]:
        del sys.modules[name]
    sys.path[:] = [each for each in sys.path if each.startswith((sys.prefix, sys.base_prefix))]


def main() -> None:
    """Import everything, then fork what the parent orders. Run with the socket to it and its sys.path."""
    control = socket.socket(fileno=int(sys.argv[1]))
    sys.path[:] = ["", *json.loads(sys.argv[2])]
    # A module that is run has been imported by others.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
    _prepare(IMPORTED)
    _serve(control, os.getppid())


def _prepare(modules: Sequence[str]) -> None:
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    main()
