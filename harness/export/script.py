"""From calls to a script that anyone can run: the calls, guarded memory, the kernels' source, the answer."""

import platform
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

import jinja2

import attnfuzz
from attnfuzz.harness.check import TIMEOUT_SECONDS
from attnfuzz.harness.export import literals
from attnfuzz.harness.export.inline import inlined
from attnfuzz.harness.failures import Observation
from attnfuzz.harness.memory.poison import poison_bytes, sentinel_bytes
from attnfuzz.harness.registry import resolve
from attnfuzz.harness.templates import environment_of
from attnfuzz.kernels import torch_sdpa
from attnfuzz.kernels.backend import Backend
from attnfuzz.kernels.native import build, ops, unsupported
from attnfuzz.kernels.native.fault_recorder import FAULT_RECORD
from attnfuzz.kernels.trtllm import gather
from attnfuzz.reference.calls import CallCase, View
from attnfuzz.reference.contract import LseBase
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import ROUNDOFF, SMALLEST_STEP

MAX_BYTES = 64 << 20
"""Of all buffers of a script: it carries them as text."""

_MODULES: tuple[ModuleType, ...] = (unsupported, ops, gather, torch_sdpa)
"""The modules whose functions a script can carry along."""

_PACKAGES = ("torch", "apache-tvm-ffi")


class CannotExport(ValueError):
    """A case that no stand-alone script can be made of; the message says why."""


def render_script(case_id: str, calls: CallCase, seen: Observation | None) -> str:
    """A script that runs `calls`, and says whether what was `seen` when the case of that id ran shows.

    Raises:
        CannotExport: a kernel is not this project's, so that its source can't be carried along, or there is too much.

    """
    backend = resolve(calls.backend)
    nbytes = sum(buffer.size * buffer.dtype.itemsize for buffer in calls.buffers)
    if nbytes > MAX_BYTES:
        raise CannotExport(f"its buffers have {nbytes >> 20} MiB, a script carries at most {MAX_BYTES >> 20} MiB")
    names = {op: _carried(backend, op) for op in sorted({call.op for call in calls.calls})}
    native = any(hasattr(ops, name) for name in names.values())
    return _template().render(
        title=_title(calls, seen),
        calls=calls,
        case_id=case_id,
        seen=seen,
        versions=_versions(),
        attnfuzz_version=attnfuzz.__version__,
        native=native,
        names=names,
        wrappers=inlined(_MODULES, names.values(), {"build.load()": "native()"}),
        flags=build.FLAGS,
        sources={path.name: path.read_text() for path in build.sources()} if native else {},
        fault_record=FAULT_RECORD.format,
        poison={dtype.value: poison_bytes(dtype.torch_dtype, dtype.itemsize) for dtype in DType},
        sentinel={dtype.value: sentinel_bytes(dtype.torch_dtype, dtype.itemsize) for dtype in DType},
        outputs=repr(calls.outputs.value),
        read_only=_read_only(calls, backend),
        timeout=int(TIMEOUT_SECONDS),
        **_judging(calls, backend),
    )


def _judging(calls: CallCase, backend: Backend) -> dict[str, object]:
    """What the error of a correct kernel depends on."""
    if calls.answer is None:
        return {}
    dtypes = {buffer.name: buffer.dtype for buffer in calls.buffers}
    dtype = dtypes[calls.answer.out.buffer]
    return {
        "noise": backend.noise(dtype),
        "roundoff": ROUNDOFF[dtype.torch_dtype],
        "smallest": SMALLEST_STEP[dtype.torch_dtype],
        "has_lse": backend.contract.lse is LseBase.TWO,
    }


def _read_only(calls: CallCase, backend: Backend) -> list[str]:
    """The buffers that no call may write, nor anybody else between the calls."""
    written = {write.name for call in calls.calls for write in call.writes}
    seen: list[str] = []
    for call in calls.calls:
        for name, value in call.arguments.items():
            views = [view for view in (value if isinstance(value, list) else [value]) if isinstance(view, View)]
            if name in backend.ops[call.op].writes:
                written.update(view.buffer for view in views)
            seen += [view.buffer for view in views]
    return [buffer.name for buffer in calls.buffers if buffer.name in seen and buffer.name not in written]


def _carried(backend: Backend, op: str) -> str:
    """The name of an op's function, whose source a script can carry."""
    function = backend.ops[op].function
    if function.__module__ not in {module.__name__ for module in _MODULES}:
        raise CannotExport(f"{op} of {backend.name} is not part of attnfuzz: a script can't carry its source along")
    name: str = function.__name__
    return name


def _template() -> jinja2.Template:
    environment = environment_of("attnfuzz.harness.export", autoescape=False, keep_trailing_newline=True)
    environment.filters.update(
        python=repr,
        argument=literals.argument,
        content=literals.content,
        write_of=literals.write,
        source=literals.source,
        in_docstring=literals.in_docstring,
    )
    return environment.get_template("script.py.j2")


def _title(calls: CallCase, seen: Observation | None) -> str:
    what = f"{seen.kind}: {seen.place}" if seen else "Nothing wrong"
    where = f" in {calls.mode}" if calls.mode else ""
    return literals.in_docstring(f"{what}, in calls that {calls.backend} made{where}.")


def _versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join([*found, f"{platform.system()} {platform.machine()}"])
