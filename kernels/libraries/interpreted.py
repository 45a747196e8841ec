"""Triton sources of installed packages, imported without the packages, for Triton's interpreter on a CPU.

Inference servers are not importable without a GPU, and import much that their kernels don't need. Their modules with
kernels are executed on stand-ins for the modules that these import; nothing of it stays in sys.modules.
"""

import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from packaging.version import Version

from attnfuzz.kernels.building.triton_interpreter import corrections
from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.reference.dtypes import DType

DTYPES = (DType.FLOAT32, DType.FLOAT16)
"""The dtypes of Triton's interpreter: it multiplies the bits of bfloat16 as integers (3.9.0, runtime/interpreter.py,
`create_dot`)."""

_SWITCH = "TRITON_INTERPRET"

_MOST_PROGRAMS, _MOST_TILES = 500, 200
"""Programs and tiles of keys in one launch: the interpreter takes milliseconds for each."""


class StandIn(ModuleType):
    """A package that has the given members and no others."""

    __path__: list[str]

    def __init__(self, name: str, members: Mapping[str, object]) -> None:
        super().__init__(name)
        self.__dict__.update(members)
        self.__path__ = []


def no_interpreter() -> str | None:
    """State why the installed Triton can't interpret kernels, with the remedy; None if it can, or is missing.

    From 2.4 on, NumPy converts no array with an axis to a number. Before 3.7.0, Triton's interpreter relied on it
    (runtime/interpreter.py, `__index__`).
    """
    try:
        triton, numpy = (version(package) for package in ("triton", "numpy"))
    except PackageNotFoundError:
        return None
    if Version(triton) < Version("3.7") and Version(numpy) >= Version("2.4"):
        return f"Triton {triton} can't interpret kernels with NumPy {numpy}: pip install 'triton>=3.7' or 'numpy<2.4'"
    return None


def import_triton() -> Any:
    """Import Triton for its interpreter. Raises Unsupported if this process has imported it for a compiler."""
    # Triton reads it where a kernel is decorated, its own library's included (triton/runtime/jit.py).
    os.environ[_SWITCH] = "1"
    import triton  # noqa: PLC0415 - a library is imported by workers alone
    from triton.runtime import interpreter  # noqa: PLC0415

    if not isinstance(triton.language.standard.cdiv, interpreter.InterpretedFunction):
        raise Unsupported("Triton's interpreter, in a process that has imported Triton's compiler")
    _correct(interpreter)
    return triton


@cache
def _correct(interpreter: Any) -> None:
    """Correct the interpreter of this process."""
    for owner, name, replacement in corrections(interpreter):
        setattr(owner, name, replacement)


def import_sources(
    package: str, modules: Iterable[str], stand_ins: Mapping[str, Mapping[str, object]]
) -> dict[str, Any]:
    """Execute `modules` of an installed package, each on those before it and on `stand_ins` (their members by name).

    Returns the modules by name. Packages between are stand-ins without members.
    """
    root = folder_of(package)
    named = {name: StandIn(name, members) for name, members in stand_ins.items()}
    loaded: dict[str, Any] = {}
    with mock.patch.dict(sys.modules, named):
        for name in modules:
            _stand_in_for_packages(name)
            spec = spec_from_file_location(name, root.joinpath(*name.split(".")[1:]).with_suffix(".py"))
            assert spec is not None
            assert spec.loader is not None
            loaded[name] = sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(loaded[name])
    return loaded


def _stand_in_for_packages(name: str) -> None:
    parent = name.rpartition(".")[0]
    while parent:
        if not isinstance(sys.modules.get(parent), StandIn):
            sys.modules[parent] = StandIn(parent, {})
        parent = parent.rpartition(".")[0]


def check_size(*, programs: int, tiles: int) -> None:
    """Raise Unsupported for a launch that would take the interpreter many seconds."""
    for number, most, unit in ((programs, _MOST_PROGRAMS, "programs"), (tiles, _MOST_TILES, "tiles of keys")):
        if number > most:
            raise Unsupported(f"more than {most} {unit}, in Triton's interpreter")


def folder_of(package: str) -> Path:
    """Return the folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)))
