"""All views of a case made of calls, each with its place."""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from attnfuzz.reference.calls import Argument, Buffer, CallAnswer, CallCase, Expected, View

Place = tuple[str | int, ...]
"""The place of a view: ("call", index, argument), with a fourth entry for a member of a pair; ("answer", field); or
("request", index, field).
"""


def views_of(case: CallCase) -> Iterator[tuple[Place, View]]:
    """Yield every view, calls first."""
    for index, call in enumerate(case.calls):
        for name, value in call.arguments.items():
            for tail, view in _members(value):
                yield ("call", index, name, *tail), view
    if case.answer is not None:
        for name in ("out", "lse", "sinks"):
            view = getattr(case.answer, name)
            if view is not None:
                yield ("answer", name), view
        for index, expected in enumerate(case.answer.requests):
            for name in ("query", "key", "value"):
                yield ("request", index, name), getattr(expected, name)
            if expected.mask is not None:
                yield ("request", index, "mask"), expected.mask


def with_views(case: CallCase, change: Callable[[Place, View], View]) -> CallCase:
    """Return the case with every view replaced."""
    calls = tuple(
        replace(
            call,
            arguments={name: _changed(("call", index, name), value, change) for name, value in call.arguments.items()},
        )
        for index, call in enumerate(case.calls)
    )
    return replace(case, calls=calls, answer=None if case.answer is None else _answer(case.answer, change))


def with_contents(case: CallCase, change: Callable[[Buffer], Buffer | None]) -> CallCase:
    """Return the case with every buffer and write replaced, or dropped if `change` returns None."""

    def changed(buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple(new for buffer in buffers if (new := change(buffer)) is not None)

    answer = case.answer
    return replace(
        case,
        buffers=changed(case.buffers),
        calls=tuple(replace(call, writes=changed(call.writes)) for call in case.calls),
        answer=None if answer is None else replace(answer, writes=changed(answer.writes)),
    )


def tidy(case: CallCase) -> CallCase:
    """Return the case without unused buffers."""
    seen = {view.buffer for _, view in views_of(case)}
    return with_contents(case, lambda buffer: buffer if buffer.name in seen else None)


def _answer(answer: CallAnswer, change: Callable[[Place, View], View]) -> CallAnswer:
    def optional(name: str, view: View | None) -> View | None:
        return None if view is None else change(("answer", name), view)

    return replace(
        answer,
        out=change(("answer", "out"), answer.out),
        lse=optional("lse", answer.lse),
        sinks=optional("sinks", answer.sinks),
        requests=tuple(_expected(index, each, change) for index, each in enumerate(answer.requests)),
    )


def _expected(index: int, expected: Expected, change: Callable[[Place, View], View]) -> Expected:
    return replace(
        expected,
        query=change(("request", index, "query"), expected.query),
        key=change(("request", index, "key"), expected.key),
        value=change(("request", index, "value"), expected.value),
        mask=None if expected.mask is None else change(("request", index, "mask"), expected.mask),
    )


def _members(value: Argument) -> Iterator[tuple[tuple[int, ...], View]]:
    if isinstance(value, View):
        yield (), value
    elif isinstance(value, list):
        yield from (((member,), view) for member, view in enumerate(value))


def _changed(place: Place, value: Argument, change: Callable[[Place, View], View]) -> Any:
    if isinstance(value, View):
        return change(place, value)
    if isinstance(value, list):
        return [change((*place, member), view) for member, view in enumerate(value)]
    return value
