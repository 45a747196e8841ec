"""Ops of a library's functions, classes and methods, made of data."""

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import torch

from attnfuzz.kernels.gpu import flashinfer_op
from attnfuzz.kernels.interface.backend import Op, Unsupported
from attnfuzz.kernels.interface.library_call import HELD, OBJECT, Action, LibraryCall, OnHost
from attnfuzz.kernels.planning.workspace import NAN_BYTE


def library_op(library: LibraryCall, writes: Iterable[str] = (), *, plans: bool = False, prepares: bool = False) -> Op:
    """Return the op that makes this call, which may write the arguments in `writes`.

    One that `prepares` an object, or its workspaces, always gets the plain forms of its arguments.
    """
    prepares = prepares or library.action not in (Action.FUNCTION, Action.METHOD)
    return Op(
        library.op_name,
        _caller(library),
        frozenset(writes).union(library.results),
        library.module,
        plans=plans or prepares,
        helps=prepares,
        library=library,
    )


@cache
def _caller(library: LibraryCall) -> Callable[..., Any]:
    """Return the same function for the same call: ops are compared by their functions."""
    return partial(called, library)


@cache
def object_ops(
    module: str, name: str, workspaces: frozenset[str], *, reset: tuple[str, ...] = (), filled: str = ""
) -> Mapping[str, Op]:
    """Return the ops that make and copy the objects of a class, and those that replace and fill their workspaces.

    `workspaces` are the arguments of the constructor that it may write, `reset` those of reset_workspace_buffer, in
    order, if there is that method. `filled`: see LibraryCall.
    """
    ops: dict[str, Op] = {
        Action.MAKE: library_op(LibraryCall(action=Action.MAKE, module=module, name=name), workspaces),
        Action.COPY: library_op(LibraryCall(action=Action.COPY, module=module, name=name, method="copy")),
    }
    if reset:
        method = LibraryCall(
            action=Action.METHOD, module=module, name=name, method="reset_workspace_buffer", positional=reset
        )
        ops[Action.METHOD] = library_op(method, reset, prepares=True)
    if filled:
        fill = LibraryCall(action=Action.FILL, module=module, name=name, method="fill_workspaces", filled=filled)
        ops[Action.FILL] = library_op(fill)
    return ops


def called(library: LibraryCall, /, **arguments: Any) -> Any:
    """Make a call with a launch's arguments; return its result, or None if that was copied to arguments.

    Raises:
        Unsupported: the installed release lacks the function, the method, or an argument, or refuses the call.
    """
    receiver, held = arguments.pop(OBJECT, None), arguments.pop(HELD, ())
    if library.action is Action.COPY:
        return copy.copy(receiver)
    if library.action is Action.FILL:
        fill_workspaces(receiver, library.filled)
        return None
    results = {name: arguments.pop(name) for name in library.results}
    passed = {name: _passed(value) for name, value in arguments.items() if name not in held} | dict(library.constant)
    if (gathered := library.gathered) is not None:
        parts = {name: passed.pop(name) for name in gathered.parts}
        passed[gathered.name] = flashinfer_op.call(library.module, gathered.maker, **parts)
    positional = [passed.pop(name) for name in library.positional]
    try:
        if library.action is Action.METHOD:
            result = flashinfer_op.call_method(receiver, library.method, *positional, **passed)
        else:
            result = flashinfer_op.call(library.module, library.name, **passed)
    except Exception as error:
        if library.refusal and type(error).__name__ == library.refusal:
            raise Unsupported(f"FlashInfer refuses the call: {error}") from error
        raise
    if not results:
        return result
    copy_results(result, *results.values())
    return None


def copy_results(result: Any, *targets: torch.Tensor) -> None:
    """Copy a result, or the results in nested tuples, to as many tensors."""
    for target, made in zip(targets, _flat(result), strict=True):
        target.copy_(made)


def fill_workspaces(owner: Any, attributes: str) -> None:
    """Overwrite the workspaces that `own_workspaces` yields."""
    overwrite(own_workspaces(owner, attributes))


def own_workspaces(owner: Any, attributes: str) -> Iterator[torch.Tensor]:
    """Yield the workspaces that a FlashInfer object and its parts have allocated, in attributes of these names."""
    for name, value in vars(owner).items():
        parts = value if isinstance(value, list | tuple) else [value]
        if re.fullmatch(attributes, name):
            yield value
        elif name.endswith(("_wrapper", "_wrappers")):
            # FlashInfer 0.7 keeps a backend's wrapper as None until it is asked for.
            for part in parts:
                if part is not None:
                    yield from own_workspaces(part, attributes)


def overwrite(workspaces: Iterable[torch.Tensor]) -> None:
    """Fill workspaces with NaN, or -1."""
    for workspace in workspaces:
        workspace.view(torch.uint8).fill_(NAN_BYTE)


def _passed(value: Any) -> Any:
    return value.tensor if isinstance(value, OnHost) else value


def _flat(returned: Any) -> Iterator[torch.Tensor]:
    if isinstance(returned, torch.Tensor):
        yield returned
    else:
        for part in returned:
            yield from _flat(part)
