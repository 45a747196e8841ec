"""Recorded calls as a case."""

from collections.abc import Sequence

from attnfuzz.harness.dumps.backend_of import backend_of, check_arguments
from attnfuzz.harness.dumps.contents import BufferShelf, Contents
from attnfuzz.harness.dumps.placed_call import PlacedCall
from attnfuzz.harness.dumps.recorded import DumpError, RecordedCall
from attnfuzz.harness.dumps.understood import understood
from attnfuzz.harness.dumps.workspace import CaseWorkspaces, used_bytes
from attnfuzz.reference.call_validity import validate_calls
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.validity import ImpossibleCase


def make_case(
    call: RecordedCall, *, backend: str | None = None, contents: Contents = Contents.VALUES, seed: int = 0
) -> CallCase:
    """A case of one call, on `backend` or on the one of this project that has the function.

    Memory is bounded by what the case keeps: of the KV pool, the pages that lengths refer to. `seed` is for contents
    that are drawn.

    Raises:
        DumpError: no backend has the function, or the call can't be made into a case.
        UnknownBackend, BackendFileError, NoCompiler, BuildFailed: the backend can't be had.

    """
    return make_sequence([call], backend=backend, contents=contents, seed=seed)


def make_sequence(
    calls: Sequence[RecordedCall], *, backend: str | None = None, contents: Contents = Contents.VALUES, seed: int = 0
) -> CallCase:
    """A case of calls that followed each other in one process, each with its own tensors but for the workspace.

    The right answer is that of the last call. Raises as `make_case` does.
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
    answer = made[-1].answer()
    case = CallCase(
        backend=chosen.name,
        buffers=shelf.buffers(),
        calls=literal,
        answer=answer,
        guard=made[-1].guard,
        notes=tuple(note for each in made for note in each.notes),
    )
    try:
        validate_calls(case)
    except ImpossibleCase as error:
        raise DumpError(f"{calls[-1].folder} makes no case: {error}; import another call") from error
    return case
