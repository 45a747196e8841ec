"""Importing a release without a server: a bare package, stubs for unneeded modules, Triton's interpreter.

Module names of two releases collide, so a process loads one. Importing starts no thread (checked for 0.5.9 to 0.5.23),
so a nursery may do it before it forks.
"""

import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Final, NoReturn
from unittest import mock

import torch

from attnfuzz.kernels.releases.errors import Moved, ReleaseError
from attnfuzz.kernels.releases.imports import (
    ImportedRelease,
    check_classes,
    check_unedited,
    imported,
    importing,
    not_known,
)
from attnfuzz.kernels.releases.release import Release
from attnfuzz.kernels.releases.stubs import Stubs
from attnfuzz.kernels.releases.versions import stubbed_in
from attnfuzz.kernels.sglang.adaptations import STUBBED, ChangedName, Inert, changes_in
from attnfuzz.kernels.sglang.kinds import KINDS, SglangKind
from attnfuzz.kernels.sglang.sparse.changes import import_sparse, sparse_changes_in
from attnfuzz.kernels.sglang.sparse.kinds import SPARSE_KINDS

_CLASSES = {
    "sglang.srt.model_executor.forward_batch_info": ("ForwardBatch", "ForwardMode"),
}
"""Required classes, beside that of the backend."""

_AHEAD = (
    "sglang.srt.layers.radix_attention",
    "sglang.srt.mem_cache.memory_pool",
    "sglang.srt.model_executor.forward_batch_info",
    "sglang.srt.models.deepseek_common.attention_backend_handler",
    "sglang.srt.models.deepseek_common.attention_forward_methods.forward_mha",
    "sglang.srt.speculative.eagle_info",
    "sglang.srt.speculative.spec_info",
)
"""Optional modules that sessions use: imported before workers are forked, if a release has them."""

_OF_STATES: Final = (
    "sglang.srt.layers.attention.hybrid_linear_attn_backend",
    "sglang.srt.layers.attention.linear.gdn_backend",
    "sglang.srt.layers.attention.linear.kda_backend",
    "sglang.srt.layers.attention.mamba.mamba",
    "sglang.srt.layers.radix_linear_attention",
    "sglang.srt.speculative.spec_utils",
)
"""Optional modules of recurrent layers, which no other backend needs."""

_ON_FLASHINFER: Final = (
    "sglang.srt.layers.attention.flashinfer_backend",
    "sglang.srt.layers.attention.flashinfer_mla_backend",
)
"""Modules with backends on FlashInfer's wrappers, which others derive from."""

_HOPPER: Final[dict[str, Any]] = {
    "current_device": lambda: 0,
    "get_device_capability": lambda *_: (9, 0),
}
"""Functions of torch.cuda, with their results on a Hopper GPU."""

_loaded: "list[Loaded]" = []
"""The release of this process, once there is one."""

_of_kind: list[Callable[[], None]] = []
"""Reverts changes that are only for one kind of backend."""


@dataclass(frozen=True)
class Loaded(ImportedRelease):
    """A release, and the kind of backend that runs. `hopper`: on a real Hopper GPU."""

    kind: SglangKind
    hopper: bool

    @property
    def backend(self) -> Any:
        """The class of the backend."""
        return self._of_kind(self.kind.backend)

    @property
    def drafts(self) -> Any:
        """The class that plans the decodes of a draft model."""
        return self._of_kind(self.kind.drafts)

    def _of_kind(self, name: str) -> Any:
        return getattr(self.module(self.kind.path), name)

    def has(self, name: str) -> bool:
        """Return whether the release has a module of that name."""
        return _is_there(self.release, name)


def load(release: Release, *, hopper: bool = False) -> Loaded:
    """Import a release, or return it if this process has imported it already.

    On a CPU, Triton's kernels run in its interpreter. `hopper` is for a process that gets a Hopper GPU: kernels are
    compiled, and the release runs its code for this architecture.

    Raises:
        Moved: a module or class that all backends need is not at its known place.
        ReleaseError: it does not import, for the stated reason; a file of a fetched release was edited; this process
            has another release.

    """
    if _loaded:
        _loaded[0].check_same(release)
        return _loaded[0]
    _warn_as_with_transformers()
    with importing(release, stubbed_in(release.version, STUBBED), compiled=hopper) as stubs, _no_gpu(hopper=hopper):
        for name in _AHEAD:
            if _is_there(release, name):
                imported(release, name)
        for name in _OF_STATES:
            with suppress(ReleaseError):
                imported(release, name)
        with suppress(ReleaseError), _flashinfer(imported(release, "sglang.srt.utils")):
            for name in _ON_FLASHINFER:
                imported(release, name)
        for kind in KINDS.values():
            # A server has one backend, and imports no other.
            _provide(kind.libraries)
            with suppress(ReleaseError):
                imported(release, kind.path)
        for kind in SPARSE_KINDS.values():
            _provide(kind.libraries)
        import_sparse(release)
        check_classes(release, _CLASSES)
        check_unedited(release)
        for change in changes_in(release.version, hopper=hopper):
            if not change.kinds:
                _make(release, change)
    _loaded.append(Loaded(release, stubs, KINDS["trtllm_mha"], hopper))
    return _loaded[0]


def as_kind(loaded: Loaded, name: str) -> Loaded:
    """Return a release with another kind of backend.

    Raises Moved if it is not at its known place, and ReleaseError if it does not import.
    """
    kind = {**KINDS, **SPARSE_KINDS}[name]
    check_classes(loaded.release, {kind.path: (kind.backend,)})
    while _of_kind:
        _of_kind.pop()()
    version, names = loaded.release.version, kind.adapted_as
    changes = (*changes_in(version, hopper=loaded.hopper), *sparse_changes_in(version))
    # The parts of a kind share modules: classes that only one of them leaves out are there.
    _of_kind.extend(
        _make(loaded.release, change)
        for change in changes
        if names.intersection(change.kinds) and not (change.value is Inert and len(names) > 1)
    )
    return replace(loaded, kind=kind)


@contextmanager
def on_hopper() -> Iterator[None]:
    """Make torch report a Hopper GPU, for a release that compiles for it in a process that sees no GPU."""
    with mock.patch.multiple(torch.cuda, **_HOPPER):
        yield


@contextmanager
def _no_gpu(*, hopper: bool) -> Iterator[None]:
    """Hide the GPU from a release during its import, and silence its warnings.

    With a GPU it would need sgl_kernel, and import FlashInfer itself. Later calls reach the real machine. Code that
    determines a compilation target during import (0.5.23 kernels/jit/utils/arch.py:108) caches it, so that has to be
    right. Nothing may initialize CUDA, which starts threads even if no GPU is visible, so that no worker can be forked:
    neither code that queries Triton (0.5.9 layers/attention/fla/utils.py:231), nor functions of torch that count GPUs
    (0.5.9 distributed/parallel_state.py:74, 0.5.22 utils/common.py:631) or ask for the current one (arch.py:108).
    """
    answers: dict[str, Callable[..., object]] = {"is_available": lambda: False, "_lazy_init": _raise_without_gpu}
    if hopper:
        answers |= _HOPPER
    logger = logging.getLogger("sglang")
    level = logger.level
    with ExitStack() as stack:
        module, device = (torch.cuda, torch.device("cuda")) if hopper else (torch.cpu, None)
        stack.enter_context(mock.patch.object(torch, "get_device_module", return_value=module))
        stack.enter_context(mock.patch.object(torch.accelerator, "current_accelerator", return_value=device))
        with suppress(ImportError):
            from triton.runtime import driver  # noqa: PLC0415 - only a release needs Triton

            stack.enter_context(mock.patch.object(driver, "_active", _NoDriver()))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        logger.setLevel(logging.ERROR)
        stack.callback(logger.setLevel, level)
        yield


def _raise_without_gpu() -> NoReturn:
    raise RuntimeError("No CUDA GPUs are available")


class _NoDriver:
    """Triton's driver on a machine without a GPU."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError("0 active drivers")


@contextmanager
def _flashinfer(utilities: Any) -> Iterator[None]:
    """Make FlashInfer look installed, as on a GPU, to modules that are imported inside: its names are stubs.

    `utilities` are those of the release. Names that a backend uses are replaced (`adaptations.CHANGES`).
    """
    library = Stubs(("flashinfer",))
    there = {name: module for name, module in sys.modules.items() if library.serve(name)}
    for name in there:
        del sys.modules[name]
    library.install()
    try:
        with mock.patch.object(utilities, "is_flashinfer_available", return_value=True):
            yield
    finally:
        library.remove()
        sys.modules.update(there)


def _provide(libraries: Mapping[str, Mapping[str, Any]]) -> None:
    """Install modules that stand for compiled libraries, which are imported before or when a backend is made."""
    for name, members in libraries.items():
        module = ModuleType(name)
        module.__dict__.update(members, __path__=[])
        sys.modules[name] = module


def _warn_as_with_transformers() -> None:
    """Give loggers the method that transformers adds to them; a release calls it (0.5.23 trtllm_mha_backend.py:450)."""
    if not hasattr(logging.Logger, "warning_once"):
        logging.Logger.warning_once = logging.Logger.warning  # type: ignore[attr-defined]


def _is_there(release: Release, name: str) -> bool:
    return release.root.joinpath(*name.split(".")).with_suffix(".py").is_file()


def _make(release: Release, change: ChangedName) -> Callable[[], None]:
    """Change a name of the release. Returns a function that reverts it. Raises ReleaseError if its owner has moved."""
    owner = imported(release, f"sglang.srt.{change.module}")
    *path, last = change.name.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    # Setting a name that the release no longer reads would silently have no effect.
    if not hasattr(owner, last) and not change.on_gpus:
        raise Moved(
            f"{release.name} has no {change.name} in sglang.srt.{change.module}: {change.reason}; {not_known(release)}"
        )
    patch = mock.patch.object(owner, last, change.value, create=True)
    patch.start()
    return patch.stop
