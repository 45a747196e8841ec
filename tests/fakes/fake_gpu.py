"""Stands for a GPU under exported scripts: real signatures, the CPU's memory, and the native kernels.

Run with the paths of scripts, it runs each in a process of its own and prints its exit code. FlashInfer's functions and
those of the CUDA driver keep their names and signatures; a kernel that faults leaves the "GPU" broken, as CUDA does:
every later synchronisation raises. Scripts must have "cpu" for their DEVICE.
"""

import functools
import importlib
import inspect
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch
from fake_driver import FakeDriver
from run_scripts import run_each

from attnfuzz.kernels.native.ops import NATIVE

_driver = FakeDriver()
_broken = False


def synchronize() -> None:
    if _broken:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def launched(function: Callable[..., Any], signature: inspect.Signature, **arguments: Any) -> None:
    """Run a native kernel where it may die: first in a child, of which nothing but its death is seen."""
    global _broken  # noqa: PLW0603 - a GPU is broken for the whole process
    signature.bind(**arguments)
    synchronize()
    query = arguments.get("query")
    if query is not None and _driver.mapped:
        first, end = query.data_ptr(), query.data_ptr() + query.nbytes
        flush = any(first == start or end == start + size for start, size in _driver.mapped.items())
        assert flush, "the query is not flush with a guard"
    pid = os.fork()
    if not pid:
        # tvm_ffi's handler prints where it was, which takes a second.
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        try:
            function(**arguments)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        _broken = True
    else:
        function(**arguments)


def install() -> None:
    """Put them where scripts find them."""
    _driver.install(setattr)
    for op in NATIVE.ops():
        if op.module is not None:
            module = importlib.import_module(op.module)
            function: Callable[..., Any] = getattr(module, op.name)
            setattr(module, op.name, functools.partial(launched, op.function, inspect.signature(function)))
    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (torch.cuda, "synchronize", synchronize),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "get_device_name", lambda: "no GPU"),
    ]
    for module, name, fake in replaced:
        setattr(module, name, fake)


def main() -> None:
    torch.set_num_threads(1)
    install()
    run_each(sys.argv[1:])


if __name__ == "__main__":
    main()
