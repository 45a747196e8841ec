"""Replacements in SGLang's modules for FlashInfer, and for kernels whose compilation needs a GPU.

The replacements stay for the life of the process; the session below them changes.
"""

import sys
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.releases.stand_ins import FlashInfer, current
from attnfuzz.kernels.sglang.kinds import KINDS

_looked_at: set[str] = set()


class FixupModule:
    """The module into which SGLang compiles its fixup (0.5.11, jit_kernel/fixup_zero_kv.py:26): zero keys give 0, -inf.

    `compiled` is the real module for a dtype, if there is a GPU.
    """

    def __init__(self, compiled: Any = None) -> None:
        self._compiled = compiled

    def fixup_zero_kv_rows(self, *args: Any) -> None:
        """Set out = 0 and lse = -inf in rows without keys."""
        lower, name = current("fixup_zero_kv_rows"), "fixup_zero_kv_rows"
        op = lower.op(name) if self._compiled is None else Op(name, self._by_name, frozenset({"out", "lse"}))
        arguments = zip(("out", "lse", "kv_lens", "cum_seq_lens", "max_seq_len"), args, strict=True)
        lower.launch(op, dict(arguments))

    def _by_name(self, **arguments: Any) -> None:
        """Call the compiled fixup, which takes its arguments by position."""
        self._compiled.fixup_zero_kv_rows(*arguments.values())


class JitModule:
    """A module that a release compiled with nvcc itself, whose kernels are launched like any other.

    It is the result of load_jit (0.5.9 jit_kernel/utils.py:93, 0.5.23 kernels/jit/utils/compile/loader.py:49); a
    release calls its functions with positional arguments.

    Attributes:
        compiled: The module from load_jit.

    """

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled

    def __getattr__(self, name: str) -> Any:
        """Return one of the module's functions, as a launch."""
        return partial(_run_compiled, name, getattr(self.compiled, name))


def launching(load_jit: Callable[..., Any]) -> Callable[..., JitModule]:
    """Wrap a release's load_jit, so that its modules' kernels are launched; returns a wrapped one unchanged."""
    if getattr(load_jit, "func", None) is _loaded:
        return load_jit
    return update_wrapper(partial(_loaded, load_jit), load_jit)


def _loaded(load_jit: Callable[..., Any], *args: Any, **kwargs: Any) -> JitModule:
    return JitModule(load_jit(*args, **kwargs))


def _run_compiled(name: str, function: Callable[..., Any], *args: Any) -> Any:
    # A function without tensor arguments is a query, and runs no kernel.
    if not any(isinstance(argument, torch.Tensor) for argument in args):
        return function(*args)
    return current(name).launch(*launch_of(function, name, args))


def launch_of(function: Callable[..., Any], name: str, args: tuple[Any, ...]) -> tuple[Op, dict[str, Any]]:
    """Return a call of a compiled function as an op of the release's own, with its arguments by name.

    Neither the names of its tensors nor which of them it writes are known.
    """
    arguments = {f"argument_{place}": value for place, value in enumerate(args)}
    tensors = frozenset(place for place, value in arguments.items() if isinstance(value, torch.Tensor))

    def work(**placed: Any) -> None:
        function(*placed.values())

    return Op(name, work, tensors, own=True), arguments


def replace_calls() -> None:
    """Install the replacements in the modules of the release that were imported since the last call."""
    new = sys.modules.keys() - _looked_at
    _looked_at.update(new)
    for name in new:
        if not name.startswith("sglang."):
            continue
        module = sys.modules[name].__dict__
        if "flashinfer" in module or name.endswith(_CALLERS):
            module["flashinfer"] = FlashInfer()
        if "load_jit" in module and torch.cuda.is_available():
            module["load_jit"] = launching(module["load_jit"])
        if "_is_fa3_supported" in module:
            module["_is_fa3_supported"] = lambda: True
        if "_jit_fixup_module" in module:
            module["_jit_fixup_module"] = _fixup(module["_jit_fixup_module"])
        module.update({given: each for given, each in STAND_INS.get(name, {}).items() if given in module})


def _fixup(build: Callable[[Any], Any]) -> Callable[[Any], FixupModule]:
    """Replace the function that compiles a fixup for a dtype: nothing is compiled on a CPU."""
    return lambda dtype: FixupModule(build(dtype).compiled if torch.cuda.is_available() else None)


STAND_INS: Final = {kind.path: kind.stand_ins for kind in KINDS.values()}
"""The stand-ins of each kind of backend, by the name of its module."""

_CALLERS: Final = (".trtllm_mha_backend", ".trtllm_mla_backend")
"""Modules that import FlashInfer only if CUDA is available."""
