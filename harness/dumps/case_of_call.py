"""Turn recorded calls into a case on a backend that takes their arguments."""

import inspect
from typing import Any

import torch

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.dumps.answer import answered
from attnfuzz.harness.dumps.contents import BufferShelf, Contents
from attnfuzz.harness.dumps.object_case import backends_with
from attnfuzz.harness.dumps.placed_call import CaseWorkspaces, PlacedCall, used_bytes
from attnfuzz.harness.dumps.recorded import DumpError, ForeignTensor, OtherValue, RecordedCall
from attnfuzz.harness.dumps.understood import is_scale, understood
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.kernels.native import ops
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.native.unsupported import ACCEPTED, reject_others
from attnfuzz.reference.call_validity import validate_calls
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.validity import ImpossibleCase


def make_case(
    *calls: RecordedCall, backend: str | None = None, contents: Contents = Contents.VALUES, seed: int = 0
) -> CallCase:
    """Make a case of consecutive calls of one process, each with its own tensors except for the workspace.

    The right answer is that of the last call. Memory is bounded by the case's size: of the KV pool, it keeps the pages
    that lengths refer to. It runs on `backend`, or on this project's backend with that function. `seed` draws contents.

    Raises:
        DumpError: no backend has the function, or the call makes no case.
        UnknownBackend, BackendFileError, NoCompiler, BuildFailed: the backend can't be loaded.

    """
    chosen = backend_of(calls[-1], backend)
    for call in calls:
        backend_of(call, chosen.name)
        check_arguments(call, chosen)
    shelf = BufferShelf(contents, seed, str(calls[-1].folder))
    asked = [understood(call) for call in calls]
    used = [used_bytes(chosen.ops[each.call.function], each.given) for each in asked]
    known = [nbytes for nbytes in used if nbytes is not None]
    workspaces = CaseWorkspaces(shelf, max(known) if len(known) == len(used) else None)
    prefixes = [f"call_{index}_" if len(calls) > 1 else "" for index in range(len(calls))]
    judges_lse = chosen.contract.lse is not None
    made = [
        PlacedCall(each, shelf, workspaces, prefix, judges_lse=judges_lse)
        for each, prefix in zip(asked, prefixes, strict=True)
    ]
    literal = tuple(each.call() for each in made)
    case = CallCase(
        backend=chosen.name,
        buffers=shelf.buffers(),
        calls=literal,
        guard=made[-1].guard,
        notes=tuple(note for each in made for note in each.notes),
    )
    try:
        validate_calls(case)
    except ImpossibleCase as error:
        raise DumpError(f"{calls[-1].folder} can't be made a case: {error}; import another call") from error
    return answered(case, asked[-1], chosen.contract)


_WITH_LATENTS = frozenset({NATIVE.ragged.name, NATIVE.mla_decode.name, NATIVE.merge_state_in_place.name})
"""Functions called by the MLA backend; the others belong to the MHA backend."""


def importable() -> list[str]:
    """List the functions of FlashInfer that a backend on this machine has."""
    return sorted(op.name for op in NATIVE.ops() if op.module is not None)


def backend_of(call: RecordedCall, name: str | None) -> Backend:
    """Return the backend called `name`, or this project's. Raises DumpError, UnknownBackend, BackendFileError."""
    if call.self_id is not None:
        able = backends_with(call)
        raise DumpError(
            f"{call.folder}: {call.function} is a method of an object, and "
            + (f"needs a GPU: name {' or '.join(able)} with --backend" if able else "no backend has it")
            + f", or import a call of {', '.join(importable())}"
        )
    if name is None:
        name = "trtllm_mla" if call.function in _WITH_LATENTS else "trtllm_mha"
    backend = resolve(name)
    if call.function not in backend.ops:
        raise DumpError(
            f"{call.folder}: {name} has no kernel {call.function}; import a call of "
            f"{', '.join(importable())}, or name a backend that has it with --backend"
        )
    return backend


def check_arguments(call: RecordedCall, backend: Backend) -> None:
    """Raise DumpError for arguments that this call's native kernel doesn't take; other kernels check their own."""
    function = backend.ops[call.function].function
    if function.__module__ != ops.__name__:
        return
    parameters = inspect.signature(function).parameters
    where = f"{call.folder}: {call.function}"
    for name, parameter in parameters.items():
        needed = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if needed and name not in call.arguments:
            raise DumpError(f"{where} was recorded without {name}, which it requires; import another call")
        _check_type(where, name, parameter.annotation, call)
    for name in ("out", "out_dtype"):
        value = call.arguments.get(name)
        if isinstance(value, OtherValue | str):
            shown = value.type_name if isinstance(value, OtherValue) else value
            raise DumpError(f"{where}: {name} is {shown}, which no native kernel returns; import another call")
    # Other values can't be in a case: the kernel's default applies.
    given = {name: value for name, value in call.arguments.items() if not isinstance(value, OtherValue | torch.dtype)}
    others = {name: value for name, value in given.items() if name not in parameters}
    if others and call.function not in ACCEPTED:
        raise DumpError(f"{where} has no argument {next(iter(others))}; import another call")
    try:
        if others:
            reject_others(call.function, others)
    except (NotImplementedError, TypeError) as error:
        raise DumpError(f"{where}: {error}; it needs a GPU backend") from error


def _check_type(where: str, name: str, wanted: Any, call: RecordedCall) -> None:
    value = call.arguments.get(name)
    if wanted is torch.Tensor:
        needs, fits = "a tensor", isinstance(value, ForeignTensor)
    elif wanted is int:
        needs, fits = "an integer", isinstance(value, int) and not isinstance(value, bool)
    elif wanted is float:
        needs, fits = (
            "a number",
            isinstance(value, int | float) or is_scale(name, value),
        )
    elif wanted is bool:
        needs, fits = "true or false", isinstance(value, int)
    else:
        return
    if name in call.arguments and not fits:
        given = value.type_name if isinstance(value, OtherValue) else type(value).__name__
        given = "a tensor" if isinstance(value, ForeignTensor) else given
        raise DumpError(f"{where}: {name} must be {needs}, but was recorded as {given}; import another call")
