"""From a case to a script that anyone can run: the literal calls, guarded memory, the kernels' source, the answer."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from types import ModuleType

import jinja2

import attnfuzz
from attnfuzz.harness.failures import Observation
from attnfuzz.harness.registry import fixed, resolve
from attnfuzz.kernels import torch_sdpa
from attnfuzz.kernels.backend import Backend
from attnfuzz.kernels.native import build, ops, unsupported
from attnfuzz.kernels.native.fault_recorder import FAULT_RECORD
from attnfuzz.kernels.trtllm import gather
from attnfuzz.harness.export.inline import inlined
from attnfuzz.reference import case_file
from attnfuzz.reference.calls import Argument, CallCase, View
from attnfuzz.reference.case import Case

_MODULES: tuple[ModuleType, ...] = (unsupported, ops, gather, torch_sdpa)
"""The modules whose functions a script can carry along."""

_PACKAGES = ("torch", "apache-tvm-ffi")


class CannotExport(ValueError):  # noqa: N818 - reads as what happened
    """A case that no stand-alone script can be made of; the message says why."""


def render_script(case: Case, calls: CallCase, seen: Observation | None) -> str:
    """A script that runs `calls`, in which `case` ended, and says whether the failure that was `seen` shows.

    Raises:
        CannotExport: a kernel is not this project's, so that its source can't be carried along.
    """
    backend = resolve(calls.backend)
    used = {call.op for call in calls.calls}
    functions = {name: _function(backend, name) for name in sorted(used)}
    native = any(function.__module__ == ops.__name__ for function in functions.values())
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("attnfuzz.harness.export", "."),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - Python, not HTML
    )
    environment.filters["argument"] = _argument
    environment.filters["view"] = _view
    return environment.get_template("script.py.j2").render(
        backend=calls.backend,
        calls=calls,
        case_id=case_file.case_id(case),
        fixed=fixed(calls.backend),
        seen=seen,
        versions=_versions(),
        attnfuzz_version=attnfuzz.__version__,
        fault_record=FAULT_RECORD.format,
        native=native,
        flags=build.FLAGS,
        sources={path.name: path.read_text() for path in build.sources()} if native else {},
        wrappers=inlined(
            _MODULES, [function.__name__ for function in functions.values()], {"build.load()": "native()"}
        ),
        names={op: function.__name__ for op, function in functions.items()},
    )


def _function(backend: Backend, op: str) -> "_Function":
    function = backend.ops[op].function
    if function.__module__ not in {module.__name__ for module in _MODULES}:
        raise CannotExport(f"{op} of {backend.name} is not part of attnfuzz: a script can't carry its source along")
    return _Function(function.__module__, function.__name__)


class _Function:
    """Where a kernel's Python function is defined."""

    def __init__(self, module: str, name: str) -> None:
        self.__module__ = module
        self.__name__ = name


def _argument(value: Argument) -> str:
    if isinstance(value, View):
        return _view(value)
    if isinstance(value, list):
        return f"({', '.join(_view(item) for item in value)})"
    return repr(value)


def _view(view: View) -> str:
    parts = [repr(view.buffer), repr(view.shape)]
    if view.stride != _dense(view.shape) or view.offset or view.dtype:
        parts.append(repr(view.stride))
    if view.offset or view.dtype:
        parts.append(repr(view.offset))
    if view.dtype:
        parts.append(repr(view.dtype.value))
    return f"at({', '.join(parts)})"


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return tuple(strides)


def _versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join([*found, f"{platform.system()} {platform.machine()}"])


