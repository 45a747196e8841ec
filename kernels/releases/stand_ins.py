"""Replacements for FlashInfer in a release's modules, which pass its calls to the session that runs."""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

import torch
from packaging.version import Version

from attnfuzz.kernels.interface.backend import Op


class Lower(Protocol):
    """The kernels below a release while it runs."""

    @property
    def flashinfer(self) -> Version | None:
        """The version of FlashInfer that the release pins; None if it takes any."""

    def call(self, function: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an entry point of FlashInfer."""

    def op(self, function: str) -> Op:
        """Return the kernel for a function. Raises Unsupported if there is none."""

    def bound(self, function: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """Bind arguments to the signature of FlashInfer's function or method."""

    def launch(self, op: Op, arguments: dict[str, Any]) -> Any:
        """Launch a kernel on guarded memory."""


ENTRY_POINTS: Final = frozenset(
    {
        "trtllm_batch_decode_with_kv_cache",
        "trtllm_batch_context_with_kv_cache",
        "trtllm_ragged_attention_deepseek",
        "trtllm_batch_decode_with_kv_cache_mla",
        "trtllm_fmha_v2_prefill",
        "xqa_batch_decode_with_kv_cache",
    }
)
"""FlashInfer's functions that run a kernel of attention."""

WRAPPERS: Final = (
    "BatchAttentionWithAttentionSinkWrapper",
    "BatchDecodeWithPagedKVCacheWrapper",
    "BatchMLAPagedAttentionWrapper",
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
)
"""FlashInfer's classes that plan a batch, and run it on a paged cache or on packed keys."""

MERGE: Final = "merge_state"
"""FlashInfer's function that merges two attention states."""

FAST_PLAN: Final = "fast_decode_plan"
"""FlashInfer's function that plans a batch of decodes again, for wrappers in a graph."""

_lower: list[Lower] = []


@contextmanager
def answered_by(lower: Lower) -> Iterator[None]:
    """Let `lower` run the release's calls inside the context."""
    _lower.append(lower)
    try:
        yield
    finally:
        _lower.pop()


def current(function: str) -> Lower:
    """Return the kernels below the session that runs. Raises RuntimeError if none does, naming `function`."""
    if not _lower:
        raise RuntimeError(f"{function} was called while no session runs: it has no memory to work on")
    return _lower[-1]


def launch(op: Op, **arguments: Any) -> Any:
    """Launch an op that stands in for a function of a library, below the session that runs."""
    return current(op.name).launch(op, arguments)


class FlashInfer:
    """FlashInfer as seen by a release's modules: `flashinfer.decode.NAME` is a replacement if NAME is an entry point.

    Everything else is the installed FlashInfer's, in any module.
    """

    def __init__(self, name: str = "flashinfer") -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        """Return a submodule, a replacement, or a member of the installed FlashInfer."""
        if attribute in ENTRY_POINTS:
            return entry(attribute)
        full = f"{self._name}.{attribute}"
        if full in _ON_A_CPU and not torch.cuda.is_available():
            return _ON_A_CPU[full]
        if self._name == "flashinfer" and attribute in ("decode", "prefill", "mla", "utils", "cascade"):
            return FlashInfer(full)
        try:
            return getattr(importlib.import_module(self._name), attribute)
        except ImportError as error:
            raise AttributeError(f"{full} has no replacement, and FlashInfer is not installed") from error


def entry(function: str) -> Callable[..., Any]:
    """Return the replacement of an entry point."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return current(function).call(function, args, kwargs)

    call.__name__ = function
    return call


MULTIPROCESSORS: Final = 148
"""Those of a B200. Their number sizes scratch that no CPU kernel uses."""

_ON_A_CPU: Final[Mapping[str, Any]] = {"flashinfer.utils.get_device_sm_count": lambda _device: MULTIPROCESSORS}
"""Answers that the installed FlashInfer would get from a GPU."""
