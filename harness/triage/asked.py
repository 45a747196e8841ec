"""A call judged by its own arguments instead of a server's intent.

A planner that passes the wrong pages gets the right attention to the wrong pages. A call's result is compared with
attention to the keys that its arguments name: if they agree, the kernel followed its arguments. The differences between
the two answers are the arguments in which a planner went wrong.
"""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace

from attnfuzz.harness.calls.literal_calls import flat, literal_arguments, rows
from attnfuzz.harness.verdict.wording import count
from attnfuzz.kernels.entry_points import Breach, Parameter, RequestSpan, Role
from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.kernels.entry_points.context import leaves_empty_rows
from attnfuzz.kernels.entry_points.forms import described, tensors_of, window_of
from attnfuzz.kernels.entry_points.pool import token_major
from attnfuzz.reference.calls import (
    Buffer,
    Call,
    CallAnswer,
    CallCase,
    Expected,
    View,
    content_of,
    named_views,
    pack,
    viewed,
)
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.dtypes import DType

MAX_KEY_BYTES = 64 << 20
"""Limit of keys and values gathered from pages: the case has a copy of them."""

_UNMASKED = ("causal", "is_causal")
"""Arguments that may switch the causal mask off."""

_MASKS_OF_THEIR_OWN = frozenset({"trtllm_fmha_v2_prefill"})
"""Entry points with a mask argument, which an answer can't express."""


class NotJudgeable(ValueError):
    """A call that can't be judged by its own arguments; the message is a clause with the reason."""


class NamesNothing(NotJudgeable):
    """A call whose arguments name keys that hold NaN: unwritten memory, usually."""

    def __init__(self, breach: Breach) -> None:
        super().__init__(breach.text)
        self.breach = breach


def asked(case: CallCase, index: int, contract: Contract) -> CallCase:
    """The calls up to `index`, with the right answer to that one's arguments. Raises NotJudgeable."""
    call = case.calls[index]
    entry = ENTRY_POINTS.get(call.op)
    if entry is None or call.op in _MASKS_OF_THEIR_OWN:
        raise NotJudgeable("the meaning of its arguments is unknown")
    arguments = literal_arguments(case, index)
    try:
        parameters, spans = entry.parameters(arguments), entry.spans(arguments)
        parts = _Parts(call, parameters, arguments)
        out, query = flat(parts.view(Role.OUT), 3), flat(parts.view(Role.QUERY), 3)
        lse = flat(parts.view(Role.LSE), 2) if contract.lse is not None and parts.has(Role.LSE) else None
        scales = [_scale(arguments, name) for name in ("bmm1_scale", "bmm2_scale")]
    except ValueError as error:
        raise NotJudgeable(str(error)) from error
    _check(spans, query)
    _check_written(spans, parts.tensor(Role.QUERY))
    keys = _Keys(parts, out.shape[-1])
    causal = all(arguments.get(name, True) for name in _UNMASKED)
    requests = [
        expected
        for request, span in enumerate(spans)
        if span.kv_len or not leaves_empty_rows(call.op, arguments)
        for expected in _expected(span, query, *keys.of(span, request), causal=causal)
    ]
    answer = CallAnswer(
        out=out,
        lse=lse,
        sinks=parts.view(Role.SINKS) if parts.has(Role.SINKS) else None,
        requests=tuple(requests),
        bmm1_scale=scales[0],
        bmm2_scale=scales[1],
        window_left=window_of(arguments),
    )
    return replace(case, calls=case.calls[: index + 1], buffers=(*case.buffers, *keys.copies), answer=answer)


def _scale(arguments: Mapping[str, Any], name: str) -> float:
    """A factor, 1 by default. Raises NotJudgeable for anything but a single number."""
    scale = arguments.get(name, 1.0)
    if isinstance(scale, torch.Tensor):
        scale = scale.item() if scale.numel() == 1 else described(scale)
    if not isinstance(scale, int | float):
        raise NotJudgeable(f"{name} is {scale}, not a single number")
    return float(scale)


def _check(spans: Sequence[RequestSpan], query: View) -> None:
    """Refuse requests whose keys the arguments don't determine."""
    if not spans:
        raise NotJudgeable("it has no requests")
    for span in spans:
        if not span.inside or span.kv_len < 0:
            raise NotJudgeable("its metadata does not say which keys every request has")
        if span.first_row < 0 or span.q_len < 0 or span.first_row + span.q_len > query.shape[0]:
            raise NotJudgeable("the rows of a request are not among those of the queries")


def _check_written(spans: Sequence[RequestSpan], query: torch.Tensor) -> None:
    """Refuse queries that hold NaN, of requests that have keys."""
    unwritten = torch.isnan(query.float()).flatten(query.ndim - 2 if query.ndim > 2 else 0).any(dim=-1).flatten()
    for request, span in enumerate(spans):
        if span.kv_len and bool(unwritten[span.first_row :][: span.q_len].any()):
            text = f"the queries of request {request} hold NaN: the rows that its strides name were never written"
            raise NamesNothing(Breach(("query",), text, "FlashInfer's docstring of query: its tokens", request))


def _expected(span: RequestSpan, query: View, key: View, value: View, *, causal: bool) -> Iterator[Expected]:
    """The rows of one request; without a mask one by one, since a request's only query sees all of its keys."""
    count = span.q_len if causal else 1
    for first in range(span.first_row, span.first_row + span.q_len, max(count, 1)):
        yield Expected(first_row=first, query=rows(query, first, count), key=key, value=value)


class _Parts:
    """The tensors of one call by their roles."""

    def __init__(self, call: Call, parameters: Sequence[Parameter], arguments: Mapping[str, Any]) -> None:
        views, tensors = dict(named_views(call.arguments)), dict(tensors_of(arguments))
        self._found: dict[Role, list[tuple[Parameter, View, torch.Tensor]]] = {}
        for parameter in parameters:
            entry = (parameter, views[parameter.name], tensors[parameter.name])
            self._found.setdefault(parameter.role, []).append(entry)

    def has(self, role: Role) -> bool:
        """Whether the call has such a tensor."""
        return role in self._found

    def view(self, role: Role) -> View:
        """The first tensor of a role. Raises NotJudgeable if there is none."""
        if role not in self._found:
            raise NotJudgeable(f"it has no tensor of its {role}")
        return self._found[role][0][1]

    def tensor(self, role: Role) -> torch.Tensor:
        """The content of `view`."""
        self.view(role)
        return self._found[role][0][2]

    def caches(self) -> list[torch.Tensor]:
        """Keys and values of all pages, [pages, slots, kv heads, dim] each, or one for both."""
        if not self.has(Role.CACHE):
            return []
        if len(self._found[Role.CACHE]) > 2:
            raise NotJudgeable("its KV cache has more than two parts")
        return [member for parameter, _, tensor in self._found[Role.CACHE] for member in token_major(parameter, tensor)]


class _Keys:
    """The keys and values of requests. Those from pages are gathered into buffers of their own: `copies`."""

    def __init__(self, parts: _Parts, dim: int) -> None:
        self._parts, self._dim = parts, dim
        self._caches = parts.caches()
        self._left = MAX_KEY_BYTES
        self.copies: list[Buffer] = []

    def of(self, span: RequestSpan, request: int) -> tuple[View, View]:
        """Keys [kv_len, kv heads, qk dim] and values [kv_len, kv heads, vo dim] of a request."""
        if self._caches:
            key, value = self._caches[0], self._caches[-1][..., : self._dim]
            return self._copied(_gathered(key, span, request)), self._copied(_gathered(value, span, request))
        packed = [rows(self._parts.view(role), span.first_key, span.kv_len) for role in (Role.KEY, Role.VALUE)]
        for view, role in zip(packed, (Role.KEY, Role.VALUE), strict=True):
            if span.first_key < 0 or span.first_key + span.kv_len > self._parts.view(role).shape[0]:
                raise NotJudgeable(f"the keys of a request are not among {list(view.shape)}")
        return packed[0], packed[1]

    def _copied(self, content: torch.Tensor) -> View:
        self._left -= content.nbytes
        if self._left < 0:
            raise NotJudgeable(f"its requests have more than {MAX_KEY_BYTES >> 20} MiB of keys and values")
        name = f"asked for, {len(self.copies)}"
        data = ctypes.string_at(content.data_ptr(), content.nbytes)
        self.copies.append(Buffer(name=name, dtype=DType.of(content.dtype), size=content.numel(), bits=pack(data)))
        return View(buffer=name, shape=tuple(content.shape), stride=tuple(content.stride()))


def _gathered(cache: torch.Tensor, span: RequestSpan, request: int) -> torch.Tensor:
    """The tokens of a request, from its pages."""
    pages = torch.tensor(span.pages, dtype=torch.int64)
    if any(not 0 <= page < cache.shape[0] for page in span.pages):
        raise NotJudgeable("a page id lies outside of the pool")
    bits = cache.view(DType.of(cache.dtype).bits)
    tokens = bits[pages].flatten(0, 1)[: span.kv_len].contiguous().view(cache.dtype)
    unwritten = torch.isnan(tokens.float()).flatten(1).any(dim=1).nonzero()
    if len(unwritten):
        first, size = int(unwritten[0]), cache.shape[1]
        raise NamesNothing(
            Breach(
                ("block_tables", "seq_lens"),
                f"request {request} has {span.kv_len} keys by seq_lens, and the one at {first}, slot {first % size} of "
                f"page {span.pages[first // size]}, holds NaN: it was never written",
                "FlashInfer's docstring of seq_lens: the KV length of each request",
                request,
            )
        )
    return tokens


@dataclass(frozen=True)
class Difference:
    """A sentence, and the argument that it is about."""

    text: str
    argument: str


def differences(asked: CallCase, wanted: CallCase) -> Iterator[Difference]:
    """The differences between the answer to a call's arguments and the step's answer; scalars first.

    For each request, the first differing row.
    """
    if asked.answer is None or wanted.answer is None:
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
            yield Difference(f"The call has {name} {own}, the step wants {due}.", name)
    if (asked.sinks is None) != (wanted.sinks is None):
        has, wants = ("no sinks", "some") if asked.sinks is None else ("sinks", "none")
        yield Difference(f"The call has {has}, the step wants {wants}.", "sinks")


def _rows(expected: Expected) -> Iterator[tuple[int, int]]:
    """The rows of a request, each with its number of visible keys under a causal mask."""
    q_len, kv_len = expected.query.shape[0], expected.key.shape[0]
    for token in range(q_len):
        yield expected.first_row + token, max(0, kv_len - q_len + token + 1)


def _of_rows(whose: str, due: Expected, own: dict[int, tuple[int, Expected]]) -> Iterator[Difference]:
    for row, seen in _rows(due):
        if row not in own:
            yield Difference(f"Row {row}, {whose}, belongs to no request of the call.", "query")
        elif own[row][0] != seen:
            keys = f"{count(own[row][0], 'key')} in the call, and {seen} in the step"
            yield Difference(f"Row {row}, {whose}, sees {keys}.", "seq_lens")


def _of_keys(index: int, asked: tuple[CallCase, Expected], wanted: tuple[CallCase, Expected]) -> Difference | None:
    """The first differing key of a request."""
    keys, due = _content(asked[0], asked[1].key), _content(wanted[0], wanted[1].key)
    if keys is None or due is None or not len(due):
        return None
    common = min(len(keys), len(due))
    others = (keys[:common] != due[:common]).flatten(1).any(dim=1).nonzero()
    if not len(others):
        return None
    text = f"Request {index} has other keys in the call than in the step, from key {int(others[0])} of {len(due)} on."
    return Difference(text, "block_tables")


def _content(case: CallCase, view: View) -> torch.Tensor | None:
    """The bits of a view of a buffer; None if a kernel has written it."""
    buffer = next(buffer for buffer in case.buffers if buffer.name == view.buffer)
    content = content_of(buffer)
    if content is None or view.dtype is not None:
        return None
    return viewed(content.view(buffer.dtype.bits), view)
