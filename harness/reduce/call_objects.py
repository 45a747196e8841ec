"""Edits of calls on objects: earlier uses, workspaces, copies, graphs and streams that the failure doesn't need.

A library that is right gives the same answer after each of these edits: no run loses its plan, no plan its workspaces.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from attnfuzz.harness.calls.object_calls import RESET, consistent, needs, prepares
from attnfuzz.harness.reduce.placed_views import tidy
from attnfuzz.kernels.interface.library_call import OUTPUTS
from attnfuzz.reference.calls import REPLAY, Buffer, Call, CallCase, named_views


def drop_earlier_uses(case: CallCase) -> Iterator[CallCase]:
    """Drop the calls on objects that neither the answer nor the last call needs: all of them, then one by one."""
    calls, everything = case.calls, set(range(len(case.calls)))
    idle = [index for index in range(len(calls) - 1) if _is_idle(case, index)]
    needed: set[int] = set()
    for index in everything.difference(idle):
        needed |= needs(calls, index)
    for gone in ({*idle} - _with_needs(calls, needed), *({index} for index in idle)):
        kept = everything - gone
        if gone and consistent(calls, kept):
            yield tidy(with_calls(case, kept))


def _with_needs(calls: Sequence[Call], some: set[int]) -> set[int]:
    """Return some calls, and all that these need in turn."""
    return some.union(*(needs(calls, index) for index in some))


def _is_idle(case: CallCase, index: int) -> bool:
    """Return whether no other call, and no answer, sees the results of a call on an object."""
    call = case.calls[index]
    if not call.on and not call.makes:
        return False
    if prepares(call):
        return True
    results = {view.buffer for name, view in named_views(call.arguments) if name in OUTPUTS}
    others = {view.buffer for n, each in enumerate(case.calls) if n != index for _, view in named_views(each.arguments)}
    answer = case.answer
    if answer is not None:
        others |= {view.buffer for view in (answer.out, answer.lse) if view is not None}
    return not results & others


def take_workspaces_at_once(case: CallCase) -> Iterator[CallCase]:
    """Give the constructor the workspace of floats that replaces its own before anything else happens."""
    for index, call in enumerate(case.calls):
        first = next((n for n, each in enumerate(case.calls) if call.makes and each.on == call.makes), None)
        name = "float_workspace_buffer"
        if first is None or name not in call.arguments or not case.calls[first].op.endswith(f".{RESET}"):
            continue
        made = replace(call, arguments={**call.arguments, name: case.calls[first].arguments[name]})
        calls = (*case.calls[:index], made, *case.calls[index + 1 :])
        yield tidy(with_calls(replace(case, calls=calls), set(range(len(calls))) - {first}))


def use_originals(case: CallCase) -> Iterator[CallCase]:
    """Use each object instead of its copy."""
    for index, copied in enumerate(case.calls):
        if copied.makes and copied.on:
            calls = tuple(replace(call, on=copied.on) if call.on == copied.makes else call for call in case.calls)
            yield with_calls(replace(case, calls=calls), set(range(len(calls))) - {index})


def make_captured_calls(case: CallCase) -> Iterator[CallCase]:
    """Make the calls of a graph where it is replayed, instead of capturing them."""
    for graph in dict.fromkeys(call.graph for call in case.calls if call.op == REPLAY):
        captured = [call for call in case.calls if call.graph == graph and call.op != REPLAY]
        calls: list[Call] = []
        pending: tuple[Buffer, ...] = ()
        for call in case.calls:
            if call.graph != graph:
                calls.append(replace(call, writes=pending + call.writes))
                pending = ()
            elif call.op == REPLAY:
                first, *others = captured
                calls += [replace(first, graph="", writes=pending + call.writes)]
                calls += [replace(each, graph="", writes=()) for each in others]
                pending = ()
            else:
                pending += call.writes
        yield replace(case, calls=tuple(calls))


def use_one_stream(case: CallCase) -> Iterator[CallCase]:
    """Make all calls on the current stream."""
    if any(call.apart for call in case.calls):
        yield replace(case, calls=tuple(replace(call, apart=False) for call in case.calls))


def with_calls(case: CallCase, kept: set[int]) -> CallCase:
    """Keep only these calls. Writes before a dropped call move to the next."""
    calls: list[Call] = []
    pending: tuple[Buffer, ...] = ()
    for index, call in enumerate(case.calls):
        pending += call.writes
        if index in kept:
            calls.append(replace(call, writes=pending))
            pending = ()
    answer = case.answer
    if answer is not None:
        answer = replace(answer, writes=pending + answer.writes)
    return replace(case, calls=tuple(calls), answer=answer)


EDITS = (drop_earlier_uses, make_captured_calls, use_originals, use_one_stream, take_workspaces_at_once)
