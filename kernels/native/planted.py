"""Native kernels with planted mistakes, from a second library that supports them (defects.h)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attnfuzz.kernels.native import build


@contextmanager
def planted(*defects: str) -> Iterator[None]:
    """Plant the named defects in every native kernel; without names, the kernels are correct.

    Applies to the whole process: no other thread may call a kernel at the same time. Raises ValueError for an unknown
    defect.
    """
    module = build.load_with_defects()
    try:
        for defect in defects:
            module.plant(defect)
        with build.replaced(module):
            yield
    finally:
        module.uproot_all()


class Planted:
    """A native kernel's `function` with the named `defects` planted while it runs."""

    def __init__(self, function: Callable[..., Any], *defects: str) -> None:
        self.function, self.defects = function, defects

    def __call__(self, **arguments: Any) -> Any:
        """Call the function."""
        with planted(*self.defects):
            return self.function(**arguments)
