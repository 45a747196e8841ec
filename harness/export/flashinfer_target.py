"""Scripts that make the same calls of FlashInfer, on a GPU. flashinfer is not imported here."""

from functools import partial

from msgspec.structs import replace

import attnfuzz
from attnfuzz.harness.export.body import Dialect, reached_by
from attnfuzz.harness.export.inline import inlined
from attnfuzz.harness.export.target import CannotExport, Parts, raises, versions_of
from attnfuzz.harness.sandbox.check import TIMEOUT_SECONDS
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.kernels import fixup
from attnfuzz.kernels.backend import Backend
from attnfuzz.kernels.trtllm import gather
from attnfuzz.reference.calls import Argument, Call, CallCase, View
from attnfuzz.reference.dtypes import DType

WORKSPACE_BYTES = 128 << 20
"""Of a workspace at least: what FlashInfer's own tests allocate for these functions, whose kernels need more than the
CPU's."""

_OWN = (fixup, gather)
"""The modules whose functions FlashInfer lacks, all in torch."""

_DECODE = "trtllm_batch_decode_with_kv_cache"
_WORKSPACE = "workspace_buffer"
_COMPILATION_SECONDS = 600


def flashinfer_parts(
    case_id: str, calls: CallCase, backend: Backend, seen: Observation | None, *, guarded: bool
) -> tuple[CallCase, Parts]:
    """The calls as FlashInfer is to be called, and what such a script has.

    Raises:
        CannotExport: one of the functions is not FlashInfer's.

    """
    imported: dict[str, list[str]] = {}
    own = []
    for op in sorted({call.op for call in calls.calls}):
        module = backend.ops[op].module
        if module is not None and module.startswith("flashinfer."):
            imported.setdefault(module, []).append(op)
        elif module is None and any(hasattr(source, op) for source in _OWN):
            own.append(op)
        else:
            raise CannotExport(f"FlashInfer has no {op}: export it without --for")
    recorded = calls
    if seen is None or seen.kind is not Kind.LSE_MISMATCH:
        calls = _without_lse(calls)
    workspaces = _workspaces(calls)
    sizes = [buffer.size * buffer.dtype.itemsize for buffer in calls.buffers if buffer.name in workspaces]
    # Whole MiB, so that it reads well.
    workspace_bytes = -(-max(WORKSPACE_BYTES, *sizes, 0) >> 20) << 20
    names = {call.op: call.op for call in calls.calls}
    return calls, Parts(
        dialect=Dialect(names, partial(_adapt, workspace_bytes), after="torch.cuda.synchronize()"),
        device="cuda",
        packages=(
            "import flashinfer",
            "import torch",
            *(("from cuda.bindings import driver",) if guarded else ()),
            *(f"from {module} import {', '.join(functions)}" for module, functions in sorted(imported.items())),
        ),
        install=f"torch flashinfer-python{' cuda-bindings' if guarded else ''}",
        about=(
            "Run it with Python 3.11+, torch and FlashInfer, on a GPU that FlashInfer has these functions for.",
            f"Written by attnfuzz {attnfuzz.__version__} from case {case_id}, for",
            f"{', '.join(versions_of(('flashinfer-python', 'cuda-bindings', 'torch')))}.",
            f"What was seen, was seen with the kernels of {calls.backend}, which take the same arguments.",
            *_differences(recorded, calls, workspace_bytes),
        ),
        allocate="allocate_cuda.py.j2" if guarded else "allocate_plain.py.j2",
        main="on_gpu.py.j2",
        wrappers=inlined(_OWN, own, {}),
        left_out=workspaces,
        more={
            "native": False,
            "sources": {},
            "bounds": {},
            "tolerance": _tolerance(calls),
            "hangs": seen is not None and seen.kind is Kind.HANG,
            "raises": raises(seen),
            "timeout": int(TIMEOUT_SECONDS) + _COMPILATION_SECONDS,
        },
    )


def _adapt(workspace_bytes: int, name: str, text: str) -> str:
    """An argument where FlashInfer wants it."""
    if name == _WORKSPACE:
        return f"torch.zeros({workspace_bytes >> 20} << 20, dtype=torch.uint8, device=DEVICE)"
    # The mirrors of lengths, for the host.
    return f"{text}.cpu()" if name.endswith("_cpu") and text != "None" else text


def _without_lse(calls: CallCase) -> CallCase:
    """The calls without the LSE of paged decode, where none but the judge looks at it: not every kernel has one."""
    answer = calls.answer
    decodes = [call for call in calls.calls if call.op == _DECODE]
    elsewhere = reached_by(call for call in calls.calls if call.op != _DECODE)
    dropped = {name for call in decodes if (name := _buffer(call.arguments.get("lse"))) and name not in elsewhere}
    if not dropped:
        return calls

    def bare(call: Call) -> Call:
        if call.op != _DECODE or _buffer(call.arguments.get("lse")) not in dropped:
            return call
        return replace(
            call, arguments={name: each for name, each in call.arguments.items() if name not in {"lse", "return_lse"}}
        )

    if answer is not None and answer.lse is not None and answer.lse.buffer in dropped:
        answer = replace(answer, lse=None)
    return replace(calls, calls=tuple(map(bare, calls.calls)), answer=answer)


def _buffer(value: Argument) -> str | None:
    return value.buffer if isinstance(value, View) else None


def _workspaces(calls: CallCase) -> frozenset[str]:
    """The buffers that are workspaces."""
    found = (_buffer(call.arguments.get(_WORKSPACE)) for call in calls.calls)
    return frozenset(name for name in found if name is not None)


def _differences(before: CallCase, after: CallCase, workspace_bytes: int) -> list[str]:
    """What FlashInfer's kernels are given that the others were not, or the other way round."""
    lines = []
    if _workspaces(before):
        lines.append(
            f"The workspace is {workspace_bytes >> 20} MiB of zeros, since how much a kernel needs is its own affair."
        )
    if after != before:
        lines.append("The LSE of the decode is left out, since XQA (SM90, SM120) has none.")
    if any(call.op == _DECODE and call.arguments.get("q_len_per_req") not in {None, 1} for call in after.calls):
        lines.append("XQA needs a mask for several queries of a request; these calls have none, as on SM100.")
    return lines


def _tolerance(calls: CallCase) -> tuple[float, float]:
    """Relative and absolute, as in FlashInfer's tests (tests/attention/test_trtllm_gen_attention.py)."""
    eight_bits = any(buffer.dtype is DType.FLOAT8_E4M3 for buffer in calls.buffers)
    return (4e-2, 7e-2) if eight_bits else (1e-2, 1e-2)
