"""Kernels that a release compiles with nvcc for itself: launches like any other, on guarded tensors.

It has them as functions of modules that its load_jit gives (0.5.9 jit_kernel/utils.py:93, 0.5.23
kernels/jit/utils/compile/loader.py:49), and calls them by the places of their arguments.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch

from attnfuzz.kernels.backend import Op

Launch = Callable[[Callable[..., Any], str, tuple[Any, ...]], object]
"""Launches a compiled function, given its name and its arguments."""


class JitModule:
    """A module of compiled kernels, whose calls go to `launch`.

    Attributes:
        compiled: What load_jit gave.

    """

    def __init__(self, compiled: Any, launch: Launch) -> None:
        self.compiled = compiled
        self._launch = launch

    def __getattr__(self, name: str) -> Any:
        """One of its functions."""
        return partial(self._call, name, getattr(self.compiled, name))

    def _call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        # What takes no tensor answers a question, and runs no kernel.
        if not any(isinstance(argument, torch.Tensor) for argument in args):
            return function(*args)
        return self._launch(function, name, args)


def launching(load_jit: Callable[..., Any], launch: Launch) -> Callable[..., JitModule]:
    """A release's load_jit, with modules whose kernels go to `launch`; itself if it is one of these already."""
    if isinstance(load_jit, _Launching):
        return load_jit
    return _Launching(load_jit, launch)


class _Launching:
    def __init__(self, load_jit: Callable[..., Any], launch: Launch) -> None:
        wraps(load_jit)(self)
        self._load_jit, self._launch = load_jit, launch

    def __call__(self, *args: Any, **kwargs: Any) -> JitModule:
        return JitModule(self._load_jit(*args, **kwargs), self._launch)


def launch_of(function: Callable[..., Any], name: str, args: tuple[Any, ...]) -> tuple[Op, dict[str, Any]]:
    """A call of a compiled function as an op of the release's own, and its arguments by names.

    Which of its tensors a kernel writes, and what they are called, is not to be told from outside.
    """
    arguments = {f"argument_{place}": value for place, value in enumerate(args)}
    tensors = frozenset(place for place, value in arguments.items() if isinstance(value, torch.Tensor))

    def work(**placed: Any) -> None:
        function(*placed.values())

    return Op(name, work, tensors, own=True), arguments
