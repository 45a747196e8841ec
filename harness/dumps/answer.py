"""The right answer to a recorded call, in the case made of it."""

import math
from collections.abc import Iterator, Sequence

import torch
from msgspec.structs import replace

from attnfuzz.harness.calls.asked import AskedCall, NamesNothing, NotJudgeable
from attnfuzz.harness.dumps.cut_pool import in_ranges
from attnfuzz.harness.dumps.understood import Understood
from attnfuzz.kernels.meaning import Role
from attnfuzz.reference.call_validity import validate_calls
from attnfuzz.reference.calls import Buffer, CallCase, Expected, View, pack
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.validity import ImpossibleCase

ANSWER_BYTES = 256 << 20
"""Limit of the keys and values that an answer copies per request; a call with more is not answered."""


def answered(case: CallCase, last: Understood, contract: Contract) -> CallCase:
    """Add the right answer to the last call of a case, or the reason that it is unknown to the notes."""
    reason = "the call breaks a precondition" if last.breaches else "its input is the output of another call"
    if not last.breaches and any(parameter.role is Role.QUERY for parameter in last.parameters.values()):
        try:
            made = _answered(case, contract)
            validate_calls(made)
        except (NotJudgeable, ImpossibleCase) as error:
            reason = str(error)
        else:
            return made
    return replace(case, notes=(*case.notes, f"Only accesses are judged, not results: {reason}."))


def _answered(case: CallCase, contract: Contract) -> CallCase:
    call = AskedCall(case, len(case.calls) - 1, most_bytes=ANSWER_BYTES)
    if not call.causal and any(span.q_len > 1 for span in call.spans):
        raise NotJudgeable("it is not causal, but expected outputs always are")
    notes: list[str] = []
    if call.silent:
        rows = f"Rows of requests without keys ({in_ranges(call.silent)})"
        notes.append(f"{rows} are not judged: the kernel does not write them.")
    requests: list[Expected] = []
    unsound: list[int] = []
    for request in range(len(call.spans)):
        try:
            requests += call.expected(request)
        except NamesNothing:
            unsound.append(request)
    if unsound:
        notes.append(f"Requests whose queries, keys or values are not finite ({in_ranges(unsound)}) are not judged.")
    made = call.with_answer(requests, lse=contract.lse is not None)
    assert made.answer is not None
    results = [(made.answer.out, 0.0)] + ([] if made.answer.lse is None else [(made.answer.lse, -math.inf)])
    writes = tuple(write for view, number in results for write in _cleared(made, view, number, requests))
    if writes:
        notes.append(
            "Rows of no judged request are assumed to be cleared after the call: how the caller used them is unknown."
        )
    return replace(made, answer=replace(made.answer, writes=writes), notes=(*case.notes, *notes))


def _cleared(case: CallCase, view: View, number: float, judged: Sequence[Expected]) -> Iterator[Buffer]:
    """Yield writes of `number` to the rows of a result that belong to no judged request."""
    owned = {row for each in judged for row in range(each.first_row, each.first_row + each.query.shape[0])}
    others = [row for row in range(view.shape[0]) if row not in owned]
    dtype, size = next(each.dtype for each in case.buffers if each.name == view.buffer), math.prod(view.shape[1:])
    row = bytes(torch.full((size,), number, dtype=dtype.torch_dtype).view(torch.uint8).tolist())
    for first, count in _runs(others, joined=view.stride[0] == size):
        yield Buffer(
            name=view.buffer,
            dtype=dtype,
            size=count * size,
            offset=view.offset + first * view.stride[0],
            bits=pack(row * count),
        )


def _runs(rows: list[int], *, joined: bool) -> Iterator[tuple[int, int]]:
    """Group ascending rows as (first, count): neighbors together if they are `joined` in memory."""
    start = 0
    for index in range(1, len(rows) + 1):
        if index == len(rows) or not joined or rows[index] != rows[index - 1] + 1:
            yield rows[start], index - start
            start = index
