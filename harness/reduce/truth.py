"""Match the keys of an answer to those of calls: keys cut from a call have to leave the answer as well."""

from collections.abc import Iterator

import torch

from attnfuzz.harness.reduce.meaning import Meaning
from attnfuzz.harness.reduce.units import Uncuttable
from attnfuzz.kernels.entry_points import Role
from attnfuzz.reference.calls import Expected, View, content_of, viewed
from attnfuzz.reference.dtypes import DType


class Truth:
    """The requests of an answer, matched to those of the calls."""

    def __init__(self, meaning: Meaning) -> None:
        self._meaning = meaning
        answer = meaning.case.answer
        self._requests = () if answer is None else answer.requests
        self._buffers = {buffer.name: buffer for buffer in meaning.case.buffers}
        self._keys = {site.call: site for site in meaning.of_role(Role.KEY)}

    def of(self, request: int) -> int | None:
        """Index of the answer's request with a request's rows; None if there is none."""
        rows = self._meaning.rows(request)
        return next((index for index, expected in enumerate(self._requests) if expected.first_row in rows), None)

    def first_key(self, call: int, request: int, index: int) -> int:
        """The row of an answer's keys at which a request's keys in a call begin.

        A call that alone has keys of a request has them from the first. Of several, each has the equal ones. Raises
        Uncuttable if that is ambiguous.
        """
        calls = [each for each in range(len(self._meaning.spans)) if self._meaning.kv_len(each, request)]
        if len(calls) <= 1:
            return 0
        found = dict(self._found(request, calls, self._requests[index]))
        if call not in found:
            raise Uncuttable(f"the keys of request {request} in call {call} are not those of the answer")
        return found[call]

    def _found(self, request: int, calls: list[int], expected: Expected) -> Iterator[tuple[int, int]]:
        key, value = self._bits(expected.key), self._bits(expected.value)
        free = torch.ones(len(key), dtype=torch.bool)
        values = {site.call: site for site in self._meaning.of_role(Role.VALUE)}
        for call in calls:
            if call not in self._keys or call not in values:
                continue
            first, length = self._meaning.spans[call][request].first_key, self._meaning.kv_len(call, request)
            own_key = _bits(self._keys[call].tensor[first : first + length])
            own_value = _bits(values[call].tensor[first : first + length])
            for row in range(len(key) - length + 1):
                rows = slice(row, row + length)
                if free[rows].all() and torch.equal(key[rows], own_key) and torch.equal(value[rows], own_value):
                    free[rows] = False
                    yield call, row
                    break

    def _bits(self, view: View) -> torch.Tensor:
        content = content_of(self._buffers[view.buffer])
        if content is None:
            raise Uncuttable(f"{view.buffer} has no content")
        return _bits(viewed(content, view))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(DType.of(tensor.dtype).bits)
