"""The native kernels with mistakes planted in them, which a second library has room for (defects.h)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from attnfuzz.kernels.backend import Op
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.ops_table import OpsTable


@contextmanager
def planted(*defects: str) -> Iterator[None]:
    """Let every native kernel that is called have the defects of these names; without any, it is right.

    Holds for the whole process: no other thread may call a kernel meanwhile. ValueError if there is no such defect.
    """
    module = build.load_with_defects()
    try:
        for defect in defects:
            module.plant(defect)
        with build.replaced(module):
            yield
    finally:
        module.uproot_all()


def defective(*defects: str) -> OpsTable:
    """The native kernels, with the defects of these names while one of them runs."""

    def with_defects(op: Op) -> Op:
        def function(**arguments: Any) -> Any:
            with planted(*defects):
                return op.function(**arguments)

        return replace(op, function=function)

    return replace(
        NATIVE,
        decode=with_defects(NATIVE.decode),
        context=with_defects(NATIVE.context),
        ragged=with_defects(NATIVE.ragged),
        mla_decode=with_defects(NATIVE.mla_decode),
        merge_state_in_place=with_defects(NATIVE.merge_state_in_place),
        fixup=with_defects(NATIVE.fixup),
        prepare=_prepare,
    )


def _prepare(progress: Callable[[str], None]) -> None:
    """Both libraries: the correct one has the recorder of faults and the sizes of workspaces."""
    build.load(progress)
    build.load_with_defects(progress)
