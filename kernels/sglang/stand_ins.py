"""What stands in a release's modules for FlashInfer and for kernels that need a GPU to be compiled.

The stand-ins stay for as long as the process does: who answers them changes with each session.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from attnfuzz.kernels.sglang import jit_modules

Answer = Callable[[str, tuple[Any, ...], Mapping[str, Any]], Any]
"""Runs the function of this name."""

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

_answers: list[Answer] = []
_looked_at: set[str] = set()


def put_in(answer: Answer) -> None:
    """Let `answer` run what the release calls from now on, until `take_out`."""
    _replace()
    _answers.append(answer)


def take_out() -> None:
    """Let who answered before answer again."""
    _answers.pop()


class FlashInfer:
    """FlashInfer as a release's modules see it: `flashinfer.decode.NAME` is a stand-in if NAME is an entry point.

    Anything else is that of the installed FlashInfer, in whatever module it lies.
    """

    def __init__(self, name: str = "flashinfer") -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        """A submodule, a stand-in, or what the installed one has."""
        if attribute in ENTRY_POINTS:
            return _entry(attribute)
        full = f"{self._name}.{attribute}"
        if full in _ON_A_CPU and not torch.cuda.is_available():
            return _ON_A_CPU[full]
        if self._name == "flashinfer" and attribute in ("decode", "prefill", "mla", "utils", "cascade"):
            return FlashInfer(full)
        try:
            return getattr(importlib.import_module(self._name), attribute)
        except ImportError as error:
            raise AttributeError(f"{full} is asked for, which has no stand-in, and FlashInfer is not there") from error


class FixupModule:
    """What SGLang compiles its fixup into: `fixup_zero_kv_rows(out, lse, kv_lens, cum_seq_lens, max_seq_len)`.

    `compiled` is the module that it got for a dtype, where there is a GPU.
    """

    def __init__(self, compiled: Any = None) -> None:
        self._compiled = compiled

    def fixup_zero_kv_rows(self, *args: Any) -> None:
        """Answer rows without keys."""
        compiled = self._compiled
        _run("fixup_zero_kv_rows", args, {} if compiled is None else {"compiled": _by_name(compiled)})


def _by_name(compiled: Any) -> Callable[..., None]:
    """The compiled fixup, which takes its arguments by their places."""

    def fixup_zero_kv_rows(**arguments: Any) -> None:
        compiled.fixup_zero_kv_rows(*arguments.values())

    return fixup_zero_kv_rows


def _entry(function: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return _run(function, args, kwargs)

    call.__name__ = function
    return call


def _run(function: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if not _answers:
        raise RuntimeError(f"{function} was called while no session runs: it has no memory to work on")
    return _answers[-1](function, args, kwargs)


def _launch_compiled(function: Callable[..., Any], name: str, args: tuple[Any, ...]) -> object:
    """Have who answers launch what a release has compiled."""
    return _run("compiled", (function, name, args), {})


def _replace() -> None:
    """Put the stand-ins into the modules of the release that have appeared since the last time."""
    new = sys.modules.keys() - _looked_at
    _looked_at.update(new)
    for name in new:
        if not name.startswith("sglang."):
            continue
        module = sys.modules[name].__dict__
        if "flashinfer" in module or name.endswith(_CALLERS):
            module["flashinfer"] = FlashInfer()
        if "load_jit" in module and torch.cuda.is_available():
            module["load_jit"] = jit_modules.launching(module["load_jit"], _launch_compiled)
        if "_jit_fixup_module" in module:
            module["_jit_fixup_module"] = _fixup(module["_jit_fixup_module"])


def _fixup(build: Callable[[Any], Any]) -> Callable[[Any], FixupModule]:
    """What stands for the function that compiles a fixup for a dtype: on a CPU nothing is compiled."""
    return lambda dtype: FixupModule(build(dtype).compiled if torch.cuda.is_available() else None)


_CALLERS: Final = (".trtllm_mha_backend", ".trtllm_mla_backend")
"""Modules that import FlashInfer only where CUDA is."""

_ON_A_CPU: Final[Mapping[str, Any]] = {
    # A B200: how many multiprocessors there are sizes scratch that no CPU kernel uses.
    "flashinfer.utils.get_device_sm_count": lambda _device: 148,
}
"""What the installed FlashInfer would ask a GPU."""
