"""The right answer to a recorded call, from the keys and values of each of its requests."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnfuzz.harness.calls.literal_calls import flat, rows
from attnfuzz.harness.dumps.contents import BufferShelf
from attnfuzz.harness.dumps.pool import CutPool, PageMap, in_ranges
from attnfuzz.kernels.entry_points import RequestSpan
from attnfuzz.kernels.entry_points.forms import window_of
from attnfuzz.kernels.entry_points.pool import token_major
from attnfuzz.reference.calls import Buffer, CallAnswer, Expected, View, pack

ANSWER_BYTES = 256 << 20
"""Limit of the keys and values that an answer copies per request; a call with more is not answered."""


class Unanswerable(ValueError):
    """A call whose right answer is unknown; the message says why, as the end of a sentence."""


@dataclass(frozen=True)
class CallInCase:
    """A call in the case: its tensors by argument, its scalars, and its requests.

    `cache` is the paged KV cache with its pages, None if `key` and `value` are packed. `leaves_empty` is True if the
    kernel, by its documentation, does not write rows of requests without keys.
    """

    views: Mapping[str, View]
    arguments: Mapping[str, Any]
    spans: tuple[RequestSpan, ...]
    cache: tuple[CutPool, PageMap] | None
    leaves_empty: bool
    causal: Any


def answer_to(asked: CallInCase, shelf: BufferShelf) -> tuple[CallAnswer, list[str]]:
    """Return the answer, its keys and values put on the shelf, and notes on omitted rows. Raises Unanswerable."""
    out, query = _rows_of(asked.views["out"], 3), _rows_of(asked.views["query"], 3)
    _check(asked, query, out, shelf)
    attended = _Attended(asked, query, shelf)
    notes: list[str] = []
    judged, unsound, unwritten = [], [], []
    for request, span in enumerate(asked.spans):
        if not span.kv_len and span.q_len and asked.leaves_empty:
            unwritten.append(request)
        elif not attended.is_finite(span):
            unsound.append(request)
        else:
            judged.append((request, span))
    if unwritten:
        notes.append(
            f"Rows of requests without keys ({in_ranges(unwritten)}) are not judged: the kernel leaves them alone."
        )
    if unsound:
        notes.append(f"Requests whose queries, keys or values are not finite ({in_ranges(unsound)}) are not judged.")
    lse = _rows_of(asked.views["lse"], 2) if "lse" in asked.views else None
    answer = CallAnswer(
        out=out,
        lse=lse,
        sinks=asked.views.get("sinks") or asked.views.get("attention_sinks"),
        requests=tuple(attended.expected(request, span) for request, span in judged),
        bmm1_scale=_scale(asked, "bmm1_scale"),
        bmm2_scale=_scale(asked, "bmm2_scale"),
        window_left=window_of(asked.arguments),
        writes=tuple(_cleared((span for _, span in judged), out, lse, shelf)),
    )
    if answer.writes:
        notes.append(
            "Rows of no judged request are taken as cleared after the call: what its caller did with them is unknown."
        )
    return answer, notes


def _check(asked: CallInCase, query: View, out: View, shelf: BufferShelf) -> None:
    if shelf.dtype(query) is not shelf.dtype(out):
        raise Unanswerable(f"the queries are {shelf.dtype(query)} and the output is {shelf.dtype(out)}")
    if not isinstance(asked.causal, int):
        raise Unanswerable("whether it is causal is neither true nor false")
    if not asked.causal and any(span.q_len > 1 for span in asked.spans):
        raise Unanswerable("it is not causal, and an answer always is")
    if not all(_lies_inside(span, asked, query.shape[0]) for span in asked.spans):
        raise Unanswerable("its metadata reaches outside of its tensors")
    parts = _parts(asked)
    dtypes = {shelf.dtype(part) for part in parts}
    if len(dtypes) > 1 or not dtypes.pop().torch_dtype.is_floating_point:
        raise Unanswerable("its keys and values are not floating point numbers of one type")
    per_token = sum(math.prod(part.shape) // max(part.shape[0], 1) * shelf.dtype(part).itemsize for part in parts)
    if asked.cache is not None:
        slots = asked.cache[0].parameters[0].axes.index("slots")
        per_token //= max(parts[0].shape[slots], 1)
    nbytes = per_token * sum(span.kv_len for span in asked.spans)
    if nbytes > ANSWER_BYTES:
        raise Unanswerable(f"its requests have {nbytes >> 20:,} MiB of keys and values, more than an answer may repeat")


def _scale(asked: CallInCase, name: str) -> float:
    scale = asked.arguments.get(name, 1.0)
    if not isinstance(scale, int | float):
        raise Unanswerable(f"{name} is no number")
    return float(scale)


def _lies_inside(span: RequestSpan, asked: CallInCase, rows: int) -> bool:
    """Whether a request's rows, pages and keys lie inside the call's tensors."""
    if not span.inside or min(span.first_row, span.q_len, span.kv_len) < 0 or span.first_row + span.q_len > rows:
        return False
    if asked.cache is not None:
        return all(0 <= page < asked.cache[1].total for page in span.pages)
    return 0 <= span.first_key <= min(part.shape[0] for part in _parts(asked)) - span.kv_len


def _parts(asked: CallInCase) -> list[View]:
    """The tensors that hold keys and values."""
    return [asked.views["key"], asked.views["value"]] if asked.cache is None else list(asked.cache[0].parts)


class _Attended:
    """The K and V of a call's requests in token order, [tokens, kv heads, dim] each."""

    def __init__(self, asked: CallInCase, query: View, shelf: BufferShelf) -> None:
        self._shelf, self._pages = shelf, None if asked.cache is None else asked.cache[1]
        self._dtype = shelf.dtype(_parts(asked)[0])
        # Once: the shelf unpacks a whole buffer for each view.
        self._query, self._rows = query, shelf.tensor(query)
        if asked.cache is None:
            parts = [shelf.tensor(part) for part in _parts(asked)]
        else:
            cache = zip(asked.cache[0].parameters, asked.cache[0].parts, strict=True)
            parts = [part for parameter, view in cache for part in token_major(parameter, shelf.tensor(view))]
        rank = asked.arguments.get("kv_lora_rank")
        self._key, self._value = parts if len(parts) == 2 else (parts[0], parts[0][..., :rank])

    def expected(self, request: int, span: RequestSpan) -> Expected:
        """Put one request's keys and values on the shelf."""
        key, value = self._of(span)
        names = (f"request_{request}_key", f"request_{request}_value")
        views = [
            self._shelf.keep(name, bits.contiguous().view(self._dtype.torch_dtype))
            for name, bits in zip(names, (key, value), strict=True)
        ]
        queries = rows(self._query, span.first_row, span.q_len)
        return Expected(first_row=span.first_row, query=queries, key=views[0], value=views[1])

    def is_finite(self, span: RequestSpan) -> bool:
        """Whether a request's queries, keys and values are finite."""
        queries = self._rows[span.first_row : span.first_row + span.q_len].contiguous()
        attended = (bits.contiguous().view(self._dtype.torch_dtype) for bits in self._of(span))
        tensors = (queries.view(self._shelf.dtype(self._query).torch_dtype), *attended)
        return all(bool(torch.isfinite(tensor.to(torch.float32)).all()) for tensor in tensors)

    def _of(self, span: RequestSpan) -> tuple[torch.Tensor, torch.Tensor]:
        if self._pages is None:
            tokens = slice(span.first_key, span.first_key + span.kv_len)
            return self._key[tokens], self._value[tokens]
        places = {page: place for place, page in enumerate(self._pages.kept)}
        at = torch.tensor([places[page] for page in span.pages], dtype=torch.long)
        return self._key[at].flatten(0, 1)[: span.kv_len], self._value[at].flatten(0, 1)[: span.kv_len]


def _rows_of(view: View, ndim: int) -> View:
    try:
        return flat(view, ndim)
    except ValueError as error:
        raise Unanswerable(str(error)) from error


def _cleared(judged: Iterable[RequestSpan], out: View, lse: View | None, shelf: BufferShelf) -> Iterator[Buffer]:
    """The writes that clear rows of no judged request: 0 in `out`, -inf in `lse` if there is one."""
    owned = {row for span in judged for row in range(span.first_row, span.first_row + span.q_len)}
    others = [row for row in range(out.shape[0]) if row not in owned]
    for view, number in ((out, 0.0), (lse, -math.inf)):
        if view is None:
            continue
        dtype, size = shelf.dtype(view), math.prod(view.shape[1:])
        cleared = torch.full((size,), number, dtype=dtype.torch_dtype).view(torch.uint8)
        row = bytes(cleared.tolist())
        for first, count in _runs(others, joined=view.stride[0] == size):
            yield Buffer(
                name=view.buffer,
                dtype=dtype,
                size=count * size,
                offset=view.offset + first * view.stride[0],
                bits=pack(row * count),
            )


def _runs(rows: list[int], *, joined: bool) -> Iterator[tuple[int, int]]:
    """Ascending rows as (first, count): neighbors together if they are `joined` in memory."""
    start = 0
    for index in range(1, len(rows) + 1):
        if index == len(rows) or not joined or rows[index] != rows[index - 1] + 1:
            yield rows[start], index - start
            start = index
