"""The library whose kernels a backend runs. Its entry points may share a mistake."""

from functools import cache

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.libraries.installed import Installed
from attnfuzz.reference.user_error import UserError

_COMPILERS = frozenset({"triton"})
"""Packages that compile the kernels of several projects."""


@cache
def library_of(name: str) -> str:
    """Return the package with the kernels of the named backend, or "" if it has its own, or can't be found."""
    try:
        backend = resolve(name)
    except UserError:
        return ""
    if isinstance(backend, GpuBackend):
        return next(iter(backend.needs), "" if backend.own else "torch")
    package = next(iter(backend.packages), "torch") if isinstance(backend, Installed) else ""
    return "" if package in _COMPILERS else package
