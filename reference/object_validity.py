"""Validity of the objects and graphs of literal calls: made once, before they are used, and used by their type."""

from attnfuzz.reference.calls import REPLAY, Call, CallCase
from attnfuzz.reference.validity import ImpossibleCase

MAX_OBJECTS = 64
"""Maximum number of objects that a case may make, and of graphs: a library allocates workspaces for each."""


def validate_objects(case: CallCase) -> None:
    """Raise ImpossibleCase for the first call on an object or graph that the calls before it don't allow."""
    objects: dict[str, str] = {}
    graphs: list[str] = []
    current = ""
    for call in case.calls:
        if call.op == REPLAY:
            _validate_replay(call, graphs)
            current = ""
            continue
        _validate_names(call)
        if call.graph not in ("", current):
            if call.graph in graphs:
                raise ImpossibleCase(f"graph of {call.op}", call.graph, "must be captured by consecutive calls")
            graphs.append(call.graph)
        current = call.graph
        _validate_object(call, objects)
        for name, made in (("objects", objects), ("graphs", graphs)):
            if len(made) > MAX_OBJECTS:
                raise ImpossibleCase(f"the number of {name}", len(made), f"must be {MAX_OBJECTS} at most")


def _validate_replay(call: Call, graphs: list[str]) -> None:
    if call.graph not in graphs:
        raise ImpossibleCase("graph of a replay", call.graph, "must have been captured before")
    if call.arguments or call.returned or call.on or call.makes or call.held or call.apart:
        raise ImpossibleCase("a replay", call.graph, "must have no arguments and no object")


def _validate_names(call: Call) -> None:
    for name in (call.on, call.makes, call.graph):
        if len(name) > 256 or not name.isprintable():
            raise ImpossibleCase(f"an object of {call.op}", name, "must have 256 printable characters at most")
    for name in call.held:
        if name not in call.arguments:
            raise ImpossibleCase(f"held by {call.op}", name, "must be an argument")


def _validate_object(call: Call, objects: dict[str, str]) -> None:
    """Check the object that a call is on, and add the one that it makes."""
    owner = call.op.rpartition(".")[0]
    if call.on and objects.get(call.on) != owner:
        legal = f"must be an object of {owner or 'a class'} that was made before"
        raise ImpossibleCase(f"object of {call.op}", call.on, legal)
    if call.makes:
        if call.makes in objects:
            raise ImpossibleCase("name of an object", call.makes, "must be unique")
        if call.graph:
            raise ImpossibleCase(f"graph of {call.op}", call.graph, "must not have calls that make an object")
        objects[call.makes] = owner if call.on else call.op
