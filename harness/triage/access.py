"""A stray access in words: the tensor, the distance past its end, and the arguments that led there."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attnfuzz.harness.calls.literal_calls import literal_arguments
from attnfuzz.harness.verdict.failures import FAULTS, Access, Observation
from attnfuzz.harness.verdict.wording import count
from attnfuzz.kernels.meaning import Role
from attnfuzz.kernels.meaning.forms import described, tensors_of
from attnfuzz.kernels.meaning.known import entry_points
from attnfuzz.kernels.meaning.places import place_of
from attnfuzz.reference.calls import CallCase, View, named_views

_VERBS = {"read": "reads", "write": "writes"}


@dataclass(frozen=True)
class Explained:
    """A stray access explained: sentences, and the names of the arguments that caused it."""

    sentences: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


def explain_access(calls: CallCase, observation: Observation) -> Explained:
    """Explain a fault's access in `calls`, whose buffers the observation names; empty for other failures."""
    if observation.kind not in FAULTS or not 0 <= observation.call < len(calls.calls):
        return Explained()
    index, op = observation.call, calls.calls[observation.call].op
    arguments = literal_arguments(calls, index)
    if observation.access is None:
        return Explained((f"{op} stopped at an unknown address: {observation.message.splitlines()[0]}.",))
    verb = _VERBS.get(observation.access.kind, "accesses memory")
    # Checked first, since a wild page may lie next to any tensor.
    page = next(_wild_pages(calls, index, observation.access, arguments), None)
    if page is not None:
        return Explained((f"It {verb} {page.text}.",), page.arguments)
    named = {name: view for name, view in named_views(calls.calls[index].arguments) if view.buffer == observation.place}
    if named:
        near = _near(calls, observation, verb, named, arguments)
        return Explained((near,), tuple(named))
    return Explained((f"It {verb} far from every tensor: {observation.message.splitlines()[0]}.",))


def _near(
    calls: CallCase, observation: Observation, verb: str, named: dict[str, View], arguments: dict[str, Any]
) -> str:
    """Describe an access near a tensor: its distance from the end, and the element that would lie there."""
    assert observation.access is not None
    (name, view), *others = named.items()
    tensor = dict(tensors_of(arguments))[name]
    buffer = next(buffer for buffer in calls.buffers if buffer.name == view.buffer)
    offset, nbytes = observation.access.offsets[buffer.name], buffer.size * buffer.dtype.itemsize
    if offset < 0:
        where = f"{count(-offset, 'byte')} before the start of"
    elif offset >= nbytes:
        where = f"{count(offset - nbytes, 'byte')} past the end of"
    else:
        where = f"{count(offset, 'byte')} inside of"
    also = f" (which shares its buffer with {', '.join(other for other, _ in others)})" if others else ""
    element = offset // tensor.element_size() - view.offset
    would_be = _would_be(observation.kernel, arguments, name, element)
    return f"It {verb} {where} {name}, {described(tensor)}{also}{would_be}."


def _would_be(op: str, arguments: dict[str, Any], name: str, element: int) -> str:
    """Return the meaning of a tensor's element, if the call's arguments are understood."""
    entry = entry_points().get(op)
    if entry is None:
        return ""
    try:
        return f", where {place_of(entry, arguments, name, element)} would be"
    except ValueError:
        return ""


@dataclass(frozen=True)
class _Page:
    text: str
    arguments: tuple[str, ...]


def _wild_pages(calls: CallCase, index: int, access: Access, arguments: dict[str, Any]) -> Iterator[_Page]:
    """Yield the call's page ids that are out of range of their pool and lead to the address."""
    entry = entry_points().get(calls.calls[index].op)
    if entry is None:
        return
    try:
        parameters = entry.parameters(arguments)
    except ValueError:
        return
    views, tensors = dict(named_views(calls.calls[index].arguments)), dict(tensors_of(arguments))
    tables = [parameter for parameter in parameters if parameter.role is Role.PAGE_TABLE]
    for parameter in parameters:
        if parameter.role is not Role.CACHE or not tables:
            continue
        view, cache = views[parameter.name], tensors[parameter.name]
        page_bytes = cache.stride(parameter.axes.index("pages")) * cache.element_size()
        offset = access.offsets.get(view.buffer)
        if offset is None or not page_bytes:
            continue
        page = (offset - view.offset * cache.element_size()) // page_bytes
        places = (tensors[tables[0].name] == page).nonzero()
        if len(places) and not 0 <= page < cache.shape[0]:
            at = ", ".join(str(position) for position in places[0].tolist())
            text = f"page {page} of {parameter.name}, which has {cache.shape[0]}: {tables[0].name}[{at}] is {page}"
            yield _Page(text, (tables[0].name,))
