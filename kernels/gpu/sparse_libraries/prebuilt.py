"""Backends of sparse attention on libraries that are installed ready to run on a GPU."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from attnfuzz.kernels.cuda import guards, nvcc, visible
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.libraries.installed import LibrarySparse
from attnfuzz.kernels.sparse.session import ChainSession
from attnfuzz.reference.device import Device
from attnfuzz.reference.sparse.capability import SparseCapability

_HOPPER: Final = frozenset({Arch.HOPPER})


class WarmedSession(ChainSession):
    """Runs each op once before it is captured, as servers do: the first call of a kernel may compile or load it."""

    def before_capture(self, op: Op, arguments: Mapping[str, Any]) -> None:
        """Run the op."""
        self._bench.launcher.launch(op, **arguments)


def _guards(progress: Callable[[str], None]) -> None:
    nvcc.build((guards.SOURCE,), progress=progress)


def _no_hopper() -> str | None:
    return visible.missing(_HOPPER, ())


@dataclass(frozen=True, kw_only=True)
class PrebuiltSparse(LibrarySparse):
    """Functions of a library with kernels for Hopper. Only the kernels of guarded memory are compiled for it."""

    load: Callable[[Callable[[str], None]], object] = _guards
    why_not: Callable[[], str | None] = _no_hopper
    session: type[ChainSession] = WarmedSession

    @property
    def libraries(self) -> tuple[tuple[Path, ...], ...]:
        """Those of this project's libraries that its cases need, each as its source files."""
        return ((guards.SOURCE,),)


def on_gpu(**limits: Any) -> SparseCapability:
    """Return a capability of kernels on a GPU."""
    return SparseCapability(device=Device.CUDA, **limits)
