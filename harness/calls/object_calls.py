"""Calls on objects and graphs: the needs of each among the calls before it."""

from collections.abc import Sequence

from attnfuzz.kernels.interface.library_call import PLANS
from attnfuzz.reference.calls import REPLAY, Call

RESET = "reset_workspace_buffer"
"""The method that replaces an object's workspaces."""


def prepares(call: Call) -> bool:
    """Return whether a call makes, plans, copies or changes an object, and computes nothing."""
    method = call.op.rpartition(".")[2]
    return bool(call.makes) or (bool(call.on) and (method in PLANS or method in (RESET, "fill_workspaces")))


def needs(calls: Sequence[Call], index: int) -> frozenset[int]:
    """Return the calls on objects that a call needs: the constructor, the last workspaces, and the last plan.

    A replay needs the calls that it captured, and the last plans before the replay.
    """
    call = calls[index]
    if call.op == REPLAY:
        captured = [n for n, each in enumerate(calls[:index]) if each.graph == call.graph]
        plans = (_last(calls, index, calls[n].on, PLANS) for n in captured)
        return frozenset(captured).union(*(needs(calls, n) for n in captured), *plans)
    found: set[int] = set()
    name, method = call.on, call.op.rpartition(".")[2]
    wanted = set() if method in PLANS or method == RESET else {*PLANS}
    before = index
    while name:
        maker = next(n for n, each in enumerate(calls) if each.makes == name)
        for kind in (wanted, {RESET} if method != RESET else set()):
            last = _last(calls, before, name, kind)
            found |= last
            if last and kind == wanted:
                # A plan on this object, or on the one that it is a copy of.
                wanted = set()
        found.add(maker)
        name, before = calls[maker].on, maker
    return frozenset(found)


def _last(calls: Sequence[Call], before: int, name: str, methods: set[str] | frozenset[str]) -> set[int]:
    """Find the last call of one of these methods on an object, before another call."""
    found = (n for n in reversed(range(before)) if calls[n].on == name and calls[n].op.rpartition(".")[2] in methods)
    last = next(found, None)
    return set() if last is None else {last}


def consistent(calls: Sequence[Call], kept: set[int]) -> bool:
    """Return whether all calls that are kept have the calls that they need."""
    return all(needs(calls, index) <= kept for index in kept)
