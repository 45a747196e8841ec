"""Stands for a backend that harms its process, with correct results: `misbehaving_backend.py:EXIT`. NONE is harmless.

`NAME_AT_TIMES` does it at one case in eight alone, chosen by its seed.
"""

import contextlib
import ctypes
import gc
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

import torch
from defective_backend import Backend as DecodeBackend
from defective_backend import Session

from attnfuzz.harness.inside.launcher import LaunchError
from attnfuzz.kernels.interface.backend import Bench, Op
from attnfuzz.reference.case import Case
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel

GIGABYTE = 1 << 30


class Odd(BaseException):
    """An exception of a backend's own."""


class Unprintable(Exception):
    """Raises when it is converted to text."""

    def __str__(self) -> str:
        raise Odd("no words")


class Wordless(Exception):
    """Says what is no text."""

    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307 - that is what is wrong with it


class Late:
    """Raises when it is collected."""

    def __del__(self) -> None:
        raise SystemExit("too late")


def throw(error: BaseException) -> NoReturn:
    raise error


def each_descriptor(act: Callable[[int], object]) -> None:
    """Do something to every descriptor but the standard ones."""
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            act(descriptor)


def replace_descriptors() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    each_descriptor(lambda descriptor: os.dup2(null, descriptor) if descriptor != null else None)


def fork_and(child: Callable[[], object], parent: Callable[[], object] = lambda: None) -> None:
    child() if os.fork() == 0 else parent()


def fork_in_c() -> None:
    ctypes.CDLL(None).fork()


def print_much() -> None:
    for _ in range(16):
        os.write(1, bytes(GIGABYTE // 16))


def fault_with(handler: signal.Handlers) -> None:
    signal.signal(signal.SIGSEGV, handler)
    ctypes.string_at(0x1000, 1)


def compute_for_ever() -> None:
    while True:
        pass


def raise_in_a_thread() -> None:
    thread = threading.Thread(target=throw, args=(Odd("in a thread"),))
    thread.start()
    thread.join()


def collect_late() -> None:
    late: list[Any] = [Late()]
    late.append(late)
    del late
    gc.collect()


def change_settings() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(2)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    sys.setrecursionlimit(120)
    sys.stdout = sys.stderr = None
    os.chdir("/")
    os.umask(0o777)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGSEGV, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_NOFILE, (10, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def lack_a_part_of_a_stub() -> None:
    """A module without a spec, as stand-ins are, is no package."""
    sys.modules["stub"] = ModuleType("stub")
    import_module("stub.part")


def kill_nursery() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    # The death of this process comes a moment later.
    time.sleep(5)


def stop_nursery_and_abort() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    os.abort()


MISDEEDS: dict[str, Callable[[], object]] = {
    "EXIT": lambda: sys.exit(0),
    "INTERRUPT": lambda: throw(KeyboardInterrupt()),
    "GENERATOR": lambda: throw(GeneratorExit("gone")),
    "ODD": lambda: throw(Odd("odd")),
    "UNPRINTABLE": lambda: throw(Unprintable()),
    "WORDLESS": lambda: throw(Wordless()),
    "LACKS_A_PACKAGE": lambda: import_module("surely_not_installed.part"),
    "LACKS_A_MODULE": lambda: import_module("torch.surely_not_there"),
    "LACKS_A_PART_OF_A_STUB": lack_a_part_of_a_stub,
    "LACKS_NUMBER_FIVE": lambda: throw(ModuleNotFoundError("x", name=5)),  # type: ignore[arg-type]
    "LENGTHY": lambda: throw(ValueError("x" * (1 << 20))),
    "SURROGATE": lambda: throw(RuntimeError("\ud800 \x1b[31m")),
    "LONG_NAME": lambda: throw(type("E" * 100_000, (Exception,), {})("named")),
    "TRUNCATE": lambda: each_descriptor(lambda descriptor: os.ftruncate(descriptor, 0)),
    "JUNK": lambda: each_descriptor(lambda descriptor: os.write(descriptor, b"\xff" * 100)),
    "CLOSE": lambda: os.closerange(3, 1024),
    "CLOSE_ALL": lambda: os.closerange(0, 1024),
    "REPLACE": replace_descriptors,
    "FORK": os.fork,
    "FORK_IN_C": fork_in_c,
    "FORK_AND_SLEEP": lambda: fork_and(lambda: time.sleep(600)),
    "FORK_AND_ABORT": lambda: fork_and(os.abort),
    "ABORT_BESIDE_A_CHILD": lambda: fork_and(lambda: time.sleep(600), os.abort),
    "PRINT": print_much,
    "IGNORE_FAULT": lambda: fault_with(signal.SIG_IGN),
    "SETTINGS": change_settings,
    "CLOSE_STDOUT": sys.stdout.close,
    "ALARM": lambda: signal.setitimer(signal.ITIMER_REAL, 0.3),
    "BUSY_THREAD": lambda: threading.Thread(target=compute_for_ever, daemon=True).start(),
    "RAISE_IN_A_THREAD": raise_in_a_thread,
    "RAISE_LATE": collect_late,
    "KILL_NURSERY": kill_nursery,
    "STOP_NURSERY": lambda: os.kill(os.getppid(), signal.SIGSTOP),
    "STOP_NURSERY_AND_ABORT": stop_nursery_and_abort,
    "KILL_GROUP": lambda: os.kill(0, signal.SIGKILL),
    "SLOW": lambda: time.sleep(0.5),
}


@dataclass(frozen=True)
class Backend(DecodeBackend):
    """Decode of any batch, with a misdeed."""

    @property
    def ops(self) -> Mapping[str, Op]:
        """The one kernel."""
        if self.name == "OPS":
            raise Odd("no ops")
        return super().ops

    def noise(self, dtype: DType) -> NoiseModel:
        """That of fp32 arithmetic."""
        if self.name == "NOISE":
            raise Odd("no noise")
        if self.name == "NO_NOISE":
            return None  # type: ignore[return-value]
        return super().noise(dtype)

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Nothing to compile."""
        if self.name == "PREPARE":
            raise Odd("not prepared")

    def open(self, case: Case, bench: Bench) -> Session:
        """A session on one case."""
        if self.name == "OPEN_ODD":
            raise Odd("not open")
        if self.name == "NO_OUTPUT":
            return Silent()  # type: ignore[return-value]
        return super().open(case, bench)

    def attend(self, *, seed: int, **arguments: Any) -> None:
        """Attention, and the misdeed."""
        super().attend(seed=seed, **arguments)
        Used.launches += 1
        if self.name == "STUMBLE" and Used.launches > 1:
            raise LaunchError("the harness stumbles over what was left behind")
        misdeed = MISDEEDS.get(self.name.removesuffix("_AT_TIMES"))
        if misdeed is not None and not (self.name.endswith("_AT_TIMES") and seed % 8):
            misdeed()


class Used:
    """Launches of this process."""

    launches = 0


class Silent:
    """A session that gives what is no output."""

    def forward(self, index: int) -> str:
        """Run one step."""
        return f"step {index}"


def __getattr__(name: str) -> Backend:
    if not name.isupper():
        raise AttributeError(name)
    return Backend(name)
