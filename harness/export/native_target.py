"""Scripts that run on a CPU: they carry the source of the kernels that they call."""

import platform
from types import ModuleType

import attnfuzz
from attnfuzz.harness.export.body import Dialect
from attnfuzz.harness.export.inline import inlined
from attnfuzz.harness.export.target import CannotExport, Parts, raises, versions_of
from attnfuzz.harness.sandbox.check import TIMEOUT_SECONDS
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.kernels import torch_sdpa
from attnfuzz.kernels.backend import Backend
from attnfuzz.kernels.native import build, ops, unsupported
from attnfuzz.kernels.native.fault_recorder import FAULT_RECORD
from attnfuzz.kernels.trtllm import gather
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.noise import ROUNDOFF, SMALLEST_STEP

_MODULES: tuple[ModuleType, ...] = (unsupported, ops, gather, torch_sdpa)
"""The modules whose functions a script can carry along."""


def native_parts(case_id: str, calls: CallCase, backend: Backend, seen: Observation | None, *, guarded: bool) -> Parts:
    """What such a script has.

    Raises:
        CannotExport: a kernel is not this project's, so that its source can't be carried along.

    """
    names = {op: _carried(backend, op) for op in sorted({call.op for call in calls.calls})}
    native = any(hasattr(ops, name) for name in names.values())
    needs = ", apache-tvm-ffi, ninja and a C++ compiler" if native else ""
    versions = [f"Python {platform.python_version()}", *versions_of(("torch", "apache-tvm-ffi"))]
    return Parts(
        dialect=Dialect(names),
        device="cpu",
        packages=("import torch", *(("import tvm_ffi.cpp",) if native else ())),
        install=f"torch{' apache-tvm-ffi ninja' if native else ''}",
        about=(
            f"Run it with Python 3.11+ and torch{needs}, on Linux.",
            f"Made by attnfuzz {attnfuzz.__version__} from case {case_id}, with",
            f"{', '.join([*versions, f'{platform.system()} {platform.machine()}'])}.",
        ),
        allocate="allocate_mmap.py.j2" if guarded else "allocate_plain.py.j2",
        main="child.py.j2",
        wrappers=inlined(_MODULES, names.values(), {"build.load()": "native()"}),
        more={
            "native": native,
            "flags": build.FLAGS,
            "sources": {path.name: path.read_text() for path in build.sources()} if native else {},
            "fault_record": FAULT_RECORD.format,
            "raises": raises(seen),
            "timeout": int(TIMEOUT_SECONDS),
            "bounds": _bounds(calls, backend),
        },
    )


def _bounds(calls: CallCase, backend: Backend) -> dict[str, object]:
    """What the error of a correct kernel depends on."""
    if calls.answer is None:
        return {}
    dtypes = {buffer.name: buffer.dtype for buffer in calls.buffers}
    dtype = dtypes[calls.answer.out.buffer]
    return {
        "noise": backend.noise(dtype),
        "roundoff": ROUNDOFF[dtype.torch_dtype],
        "smallest": SMALLEST_STEP[dtype.torch_dtype],
        "roundings": calls.answer.roundings,
    }


def _carried(backend: Backend, op: str) -> str:
    """The name of an op's function, whose source a script can carry."""
    function = backend.ops[op].function
    if function.__module__ not in {module.__name__ for module in _MODULES}:
        raise CannotExport(f"{op} of {backend.name} is not part of attnfuzz: a script can't carry its source along")
    name: str = function.__name__
    return name
