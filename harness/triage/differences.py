"""The differences between the attention that a call requests and the one that its step needs: a planner's mistakes."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from attnfuzz.harness.verdict.wording import count
from attnfuzz.reference.calls import CallAnswer, CallCase, Expected, View, content_of, viewed


@dataclass(frozen=True)
class Difference:
    """A sentence, and the argument that it is about."""

    text: str
    argument: str


def differences(asked: CallCase, wanted: CallCase) -> Iterator[Difference]:
    """Yield the differences between the answer to a call's arguments and the step's answer; scalars first.

    For each request, the first differing row.
    """
    if asked.answer is None or wanted.answer is None or any(each.mask is not None for each in wanted.answer.requests):
        # Masks are not read from a call's arguments.
        return
    yield from _of_scalars(asked.answer, wanted.answer)
    own = {row: (seen, expected) for expected in asked.answer.requests for row, seen in _rows(expected)}
    for index, expected in enumerate(wanted.answer.requests):
        found = next(_of_rows(f"of request {index}", expected, own), None) or _of_keys(
            index, (asked, own[expected.first_row][1]), (wanted, expected)
        )
        if found is not None:
            yield found


def _of_scalars(asked: CallAnswer, wanted: CallAnswer) -> Iterator[Difference]:
    for name in ("bmm1_scale", "bmm2_scale", "window_left"):
        own, due = getattr(asked, name), getattr(wanted, name)
        if own != due:
            yield Difference(f"The call has {name} {own}, but the step requires {due}.", name)
    if (asked.sinks is None) != (wanted.sinks is None):
        has, wants = ("no sinks", "some") if asked.sinks is None else ("sinks", "none")
        yield Difference(f"The call has {has}, but the step requires {wants}.", "sinks")


def _rows(expected: Expected) -> Iterator[tuple[int, int]]:
    """Yield the rows of a request, each with its number of visible keys under a causal mask."""
    q_len, kv_len = expected.query.shape[0], expected.key.shape[0]
    for token in range(q_len):
        yield expected.first_row + token, max(0, kv_len - q_len + token + 1)


def _of_rows(whose: str, due: Expected, own: dict[int, tuple[int, Expected]]) -> Iterator[Difference]:
    for row, seen in _rows(due):
        if row not in own:
            yield Difference(f"Row {row}, {whose}, belongs to no request of the call.", "query")
        elif own[row][0] != seen:
            keys = f"{count(own[row][0], 'key')} in the call, but {seen} in the step"
            yield Difference(f"Row {row}, {whose}, sees {keys}.", "seq_lens")


def _of_keys(index: int, asked: tuple[CallCase, Expected], wanted: tuple[CallCase, Expected]) -> Difference | None:
    """Return the first differing key of a request."""
    keys, due = _content(asked[0], asked[1].key), _content(wanted[0], wanted[1].key)
    if keys is None or due is None or not len(due):
        return None
    common = min(len(keys), len(due))
    others = (keys[:common] != due[:common]).flatten(1).any(dim=1).nonzero()
    if not len(others):
        return None
    text = (
        f"Request {index} has other keys in the call than in the step, starting at key {int(others[0])} of {len(due)}."
    )
    return Difference(text, "block_tables")


def _content(case: CallCase, view: View) -> torch.Tensor | None:
    """Return the bits of a view of a buffer; None if a kernel has written it."""
    buffer = next(buffer for buffer in case.buffers if buffer.name == view.buffer)
    content = content_of(buffer)
    if content is None or view.dtype is not None:
        return None
    return viewed(content.view(buffer.dtype.bits), view)
