"""The functions that a script calls: CPU kernels with their source, or FlashInfer's, which is not imported here."""

import math
import platform
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec.structs import replace

import attnfuzz
from attnfuzz.harness.backends.description import function_place
from attnfuzz.harness.export.adapters import Adapters
from attnfuzz.harness.export.body import Dialect, reached_by
from attnfuzz.harness.export.carried import CannotExport, CarriedFile, carried_name, not_ours
from attnfuzz.harness.export.library_source import imported_names, needed_functions
from attnfuzz.harness.export.python_source import inlined, standard_imports
from attnfuzz.harness.findings.environment import version_of
from attnfuzz.harness.sandbox.check import TIMEOUT_SECONDS
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.kernels.arguments import lives
from attnfuzz.kernels.cache_writes import interfaces
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.kernels.interface.guests import shipped
from attnfuzz.kernels.native import (
    build,
    ops,
    recurrent_ops,
    sparse_ops,
    token_sparse,
    transform_ops,
    unsupported,
    write_ops,
)
from attnfuzz.kernels.native.fault_recorder import FAULT_RECORD
from attnfuzz.kernels.native.planted import Planted
from attnfuzz.kernels.planning import fixup, gather, workspace
from attnfuzz.reference.calls import REPLAY, Argument, Call, CallCase, View
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType

_MODULES: tuple[ModuleType, ...] = (
    unsupported,
    ops,
    write_ops,
    transform_ops,
    sparse_ops,
    token_sparse,
    recurrent_ops,
    interfaces,
    gather,
)
"""The core's modules whose functions a script can include."""

WORKSPACE_BYTES = 128 << 20
"""Minimum size of a workspace: FlashInfer's tests allocate it for these functions, which need more than the CPU
kernels."""

_OWN = (fixup, gather)
"""Modules of functions that FlashInfer lacks, all in torch."""

_OF_SCRIPTS = (*_OWN, workspace, lives)
"""The core's modules of functions that a script for FlashInfer can include."""

_DECODE = "trtllm_batch_decode_with_kv_cache"
_WORKSPACE = "workspace_buffer"
_COMPILATION_SECONDS = 600


class Target(StrEnum):
    """The functions that a script calls: this project's CPU kernels, with their source, or FlashInfer's."""

    NATIVE = "native"
    FLASHINFER = "flashinfer"


def _of_guests(target: Target) -> tuple[ModuleType, ...]:
    return tuple(shipped(f"attnfuzz.scripts.{target}").values())


def _own_modules() -> tuple[ModuleType, ...]:
    """Return the modules whose functions a script without FlashInfer can include."""
    return (*_MODULES, *_of_guests(Target.NATIVE))


@dataclass(frozen=True)
class Parts:
    """A target's parts of a script.

    `packages` are import statements, `install` the arguments of pip if one fails. `about` are header lines about
    requirements and origin. `allocate` and `main` name templates. `wrappers` is the source of functions that the calls
    use; buffers `left_out` are not created. `carried` maps names of functions to a module and a function in it, whose
    source is in `files`, by file name. Errors are `tolerated` up to a relative and absolute size, instead of the limits
    of the backend's own noise model. `more` has values for this target's own templates.
    """

    dialect: Dialect
    device: str
    packages: tuple[str, ...]
    install: str
    about: tuple[str, ...]
    allocate: str
    main: str
    wrappers: str
    left_out: frozenset[str] = frozenset()
    tolerated: tuple[float, float] | None = None
    carried: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)


def raises(seen: Observation | None) -> bool:
    """Return whether the failure is an exception. For any other failure, an exception means that a script can't run."""
    return seen is not None and seen.kind in {Kind.RAISED, Kind.UNEXPECTED_REJECTION}


def versions_of(*packages: str) -> list[str]:
    """Return those of `packages` that are installed, with their versions."""
    found = ((package, version_of(package)) for package in packages)
    return [f"{package} {version}" for package, version in found if version]


def native_parts(
    case_id: str,
    calls: CallCase,
    backend: Backend,
    seen: Observation | None,
    *,
    guarded: bool,
    carry: Sequence[CarriedFile] = (),
) -> Parts:
    """Return the parts of a script with this project's kernels, and a user's kernels from the files in `carry`.

    Raises:
        CannotExport: a kernel is neither this project's nor in one of the files, so its source can't be included.

    """
    ops_by_name = {op: backend.ops[op] for op in sorted({call.op for call in calls.calls} - {REPLAY})}
    carried = {op: found for op, each in ops_by_name.items() if (found := carried_name(each, carry)) is not None}
    given = tuple(file.path for file in carry)
    adapters, wanted = Adapters(), list[str]()

    def known(function: Any) -> str | None:
        """Return the name of a function of this project, which is added to the script."""
        name = own_function(function)
        wanted.extend([] if name is None else [name])
        return name

    adapters.known = known
    names: dict[str, str] = {}
    stand_ins: list[str] = []
    for op in ops_by_name:
        before = len(wanted)
        names[op] = f"carried_{carried[op][1]}" if op in carried else _own_name(backend, op, adapters, given)
        if names[op] in adapters.texts and len(wanted) > before:
            stand_ins.append(op)
    own = inlined(_own_modules(), (*names.values(), *wanted), {"build.load()": "native()"})
    wrappers = "\n\n\n".join(filter(None, (own, adapters.source)))
    native = "native()" in wrappers
    mistakes = sorted({name for each in ops_by_name.values() for name in _mistakes(each.function)})
    needs = ", apache-tvm-ffi, ninja and a C++ compiler" if native else ""
    versions = [f"Python {platform.python_version()}", *versions_of("torch", "apache-tvm-ffi")]
    return Parts(
        dialect=Dialect(names),
        device="cpu",
        packages=(
            "import torch",
            *(("import tvm_ffi.cpp",) if native else ()),
            *_packages(adapters.imports),
        ),
        install=f"torch{' apache-tvm-ffi ninja' if native else ''}",
        about=(
            f"Run it with Python 3.11+ and torch{needs}, on Linux.",
            f"Made by attnfuzz {attnfuzz.__version__} from case {case_id}, with",
            f"{', '.join([*versions, f'{platform.system()} {platform.machine()}'])}.",
            *([f"It has the files {', '.join(each.name for each in carry)}."] if carry else []),
            *(_stands_in(op, names[op]) for op in stand_ins),
        ),
        allocate="allocate_mmap.py.j2" if guarded else "allocate_plain.py.j2",
        main="child.py.j2",
        wrappers=wrappers,
        carried={names[op]: (file.module, function) for op, (file, function) in carried.items()},
        files={file.name: file.source for file in carry},
        more={
            "native": native,
            "flags": build.FLAGS_WITH_DEFECTS if mistakes else build.FLAGS,
            "mistakes": mistakes,
            "sources": {path.name: path.read_text() for path in build.sources()} if native else {},
            "fault_record": FAULT_RECORD.format,
            "raises": raises(seen),
            "timeout": math.ceil(TIMEOUT_SECONDS * backend.capability.patience),
        },
    )


def _stands_in(op: str, name: str) -> str:
    return f"{name}() stands in for {op}: it runs on the CPU, and trusts its arguments as a kernel on a GPU does."


def _packages(imports: Iterable[str]) -> Iterator[str]:
    """Yield import statements, without those that a script has anyway."""
    return (line for line in imports if line != "import torch" and not standard_imports(line.split()[-1]))


def _own_name(backend: Backend, op: str, adapters: Adapters, given: Sequence[Path]) -> str:
    """Return the name of an op's function if it is this project's, so a script can include it. Raises CannotExport.

    The source of one between a backend and a library is added to the `adapters`.
    """
    function = backend.ops[op].function
    own = own_function(function)
    if own is not None:
        return own
    if function_place(function).startswith("attnfuzz."):
        return adapters.add(op, function)
    # A backend of one function has its name.
    raise not_ours(function, op if op == backend.name else f"{op} of {backend.name}", given)


def own_function(function: Any) -> str | None:
    """Return the name of a function of one of `_own_modules`, also of one with planted mistakes; None for others."""
    if isinstance(function, Planted):
        function = function.function
    module, name = (getattr(function, part, "") for part in ("__module__", "__name__"))
    source = next((each for each in _own_modules() if each.__name__ == module), None)
    # A function around another one may have its name.
    return str(name) if source is not None and getattr(source, name, None) is function else None


def _mistakes(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the mistakes that are planted in a native kernel."""
    return function.defects if isinstance(function, Planted) else ()


def flashinfer_parts(
    case_id: str, calls: CallCase, backend: Backend, seen: Observation | None, *, guarded: bool
) -> tuple[CallCase, Parts]:
    """Return the calls adapted to FlashInfer, and the parts of such a script.

    Raises:
        CannotExport: one of the functions is not FlashInfer's.

    """
    imported: dict[str, list[str]] = {}
    own: list[str] = []
    adapters, adapted = Adapters(), dict[str, str]()
    # A variation's function, which replaces a library's, is in no module of it.
    classes = {name: op.library for name, op in backend.ops.items() if op.library is not None and op.module}
    for op in sorted({call.op for call in calls.calls} - {REPLAY} - classes.keys()):
        module = backend.ops[op].module
        if module is not None and module.startswith("flashinfer."):
            imported.setdefault(module, []).append(op)
        elif module is None and any(hasattr(source, op) for source in _OWN):
            own.append(op)
        elif backend.capability.device is Device.CUDA:
            adapted[op] = adapters.add(op, backend.ops[op].function)
        else:
            raise CannotExport(f"FlashInfer has no {op}: export it without --for")
    for module, found in imported_names(calls.calls, classes).items():
        imported[module] = sorted({*found, *imported.get(module, [])})
    helpers = needed_functions(calls.calls, classes)
    sources = (*_OF_SCRIPTS, *_of_guests(Target.FLASHINFER))
    recorded = calls = _without(calls, unsupported.OWN, classes)
    if seen is None or seen.kind is not Kind.LSE_MISMATCH:
        calls = _without_lse(calls)
    workspaces = _workspaces(calls, classes)
    sizes = [buffer.size * buffer.dtype.itemsize for buffer in calls.buffers if buffer.name in workspaces]
    # Whole MiB for readability.
    workspace_bytes = -(-max(WORKSPACE_BYTES, *sizes, 0) >> 20) << 20
    names = {call.op: adapted.get(call.op, call.op) for call in calls.calls}
    library = bool(imported) or "flashinfer" in adapters.source
    dirty = calls.dirty and backend.capability.device is Device.CUDA
    eight_bits = any(buffer.dtype is DType.FLOAT8_E4M3 for buffer in calls.buffers)
    return calls, Parts(
        dialect=Dialect(
            names,
            classes,
            partial(_adapt, workspace_bytes),
            before="leave_nan_in_shared_memory()" if dirty else "",
            after="torch.cuda.synchronize()",
        ),
        device="cuda",
        packages=(
            *(("import flashinfer",) if library else ()),
            "import torch",
            *(("from cuda.bindings import driver",) if guarded else ()),
            *(f"from {module} import {', '.join(functions)}" for module, functions in sorted(imported.items())),
            *_packages(adapters.imports),
        ),
        install=f"torch{' flashinfer-python' if library else ''}{' cuda-bindings' if guarded else ''}",
        about=(
            f"Run it with Python 3.11+, torch{' and FlashInfer' if library else ''}, on a GPU that has these kernels.",
            f"Written by attnfuzz {attnfuzz.__version__} from case {case_id}, for",
            f"{', '.join(versions_of('flashinfer-python', 'cuda-bindings', 'torch'))}.",
            f"The failure was seen with attnfuzz's backend {calls.backend}, {_kernels(backend)}.",
            *_differences(recorded, calls, workspace_bytes if workspaces else None),
        ),
        allocate="allocate_cuda.py.j2" if guarded else "allocate_plain.py.j2",
        main="on_gpu.py.j2",
        wrappers="\n\n\n".join(filter(None, (inlined(sources, [*own, *helpers], {}), adapters.source))),
        left_out=workspaces,
        # Relative and absolute, as in FlashInfer's tests (tests/attention/test_trtllm_gen_attention.py): these kernels'
        # errors are not those of a backend on the CPU.
        tolerated=None if backend.capability.device is Device.CUDA else (4e-2, 7e-2) if eight_bits else (1e-2, 1e-2),
        more={
            "native": False,
            "library": library,
            "sources": {},
            "hangs": seen is not None and seen.kind is Kind.HANG,
            "dies": seen is not None and seen.kind is Kind.WORKER_DIED,
            "raises": raises(seen),
            "dirty": dirty,
            "timeout": math.ceil(TIMEOUT_SECONDS * backend.capability.patience) + _COMPILATION_SECONDS,
        },
    )


def _kernels(backend: Backend) -> str:
    if backend.capability.device is Device.CUDA:
        return "which makes these calls"
    return "whose kernels take the same arguments on a CPU"


def _adapt(workspace_bytes: int, name: str, text: str) -> str:
    """Place an argument on the device where FlashInfer expects it."""
    if name == _WORKSPACE:
        return f"torch.zeros({workspace_bytes >> 20} << 20, dtype=torch.uint8, device=DEVICE)"
    # Copies of lengths on the host.
    return f"{text}.cpu()" if name.endswith("_cpu") and text != "None" else text


def _without_lse(calls: CallCase) -> CallCase:
    """Drop the LSE of paged decode if only the judge uses it: not every kernel has one."""
    answer = calls.answer
    decodes = [call for call in calls.calls if call.op == _DECODE]
    elsewhere = reached_by(call for call in calls.calls if call.op != _DECODE)
    dropped = {name for call in decodes if (name := _buffer(call.arguments.get("lse"))) and name not in elsewhere}
    if not dropped:
        return calls

    def bare(call: Call) -> Call:
        drops = call.op == _DECODE and _buffer(call.arguments.get("lse")) in dropped
        return _bare(call, {"lse", "return_lse"}) if drops else call

    if answer is not None and answer.lse is not None and answer.lse.buffer in dropped:
        answer = replace(answer, lse=None)
    return replace(calls, calls=tuple(map(bare, calls.calls)), answer=answer)


def _without(calls: CallCase, names: Collection[str], classes: Collection[str]) -> CallCase:
    """Drop arguments of this project's functions, which those of a library may have."""
    bare = (call if call.op in classes else _bare(call, names) for call in calls.calls)
    return replace(calls, calls=tuple(bare))


def _bare(call: Call, names: Collection[str]) -> Call:
    kept = {name: each for name, each in call.arguments.items() if name not in names}
    return replace(call, arguments=kept, returned=tuple(name for name in call.returned if name not in names))


def _buffer(value: Argument) -> str | None:
    return value.buffer if isinstance(value, View) else None


def _workspaces(calls: CallCase, classes: Collection[str]) -> frozenset[str]:
    """Return the buffers that are workspaces of functions: a class has its own in exactly the recorded size."""
    found = (_buffer(call.arguments.get(_WORKSPACE)) for call in calls.calls if call.op not in classes)
    return frozenset(name for name in found if name is not None)


def _differences(before: CallCase, after: CallCase, workspace_bytes: int | None) -> list[str]:
    """Describe the differences between FlashInfer's calls and the original ones."""
    lines = []
    if workspace_bytes is not None:
        lines.append(f"The workspace is {workspace_bytes >> 20} MiB of zeros, since each kernel has its own needs.")
    if after != before:
        lines.append("The LSE of the decode is left out, since XQA (SM90, SM120) has none.")
    if any(call.op == _DECODE and call.arguments.get("q_len_per_req") not in {None, 1} for call in after.calls):
        lines.append("XQA needs a mask for several queries of a request; these calls have none, as on SM100.")
    return lines
