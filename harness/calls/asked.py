"""A call's right answer by its own arguments, instead of a server's intent.

A planner that passes the wrong pages gets the right attention to the wrong pages. A call's result is compared with
attention to the keys that its arguments name: if they agree, the kernel followed its arguments.
"""

import ctypes
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace

from attnfuzz.harness.calls.literal_calls import flat, literal_arguments, rows
from attnfuzz.harness.calls.planned import PlannedEntry, planned_parts
from attnfuzz.harness.verdict.tiers import ALPHA
from attnfuzz.kernels.meaning import Breach, EntryPoint, Parameter, RequestSpan, Role
from attnfuzz.kernels.meaning.call_pool import token_major
from attnfuzz.kernels.meaning.forms import described, tensors_of, window_of
from attnfuzz.kernels.meaning.known import entry_points
from attnfuzz.kernels.recurrent.asked import OPS, NamesNoState, asked_states
from attnfuzz.reference.calls import (
    Buffer,
    Call,
    CallAnswer,
    CallCase,
    Expected,
    ExpectedTensor,
    View,
    named_views,
    pack,
)
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.dtypes import DType

MAX_KEY_BYTES = 64 << 20
"""Default limit of keys and values gathered from pages: the case has a copy of them."""


class NotJudgeable(ValueError):
    """A call that can't be judged by its own arguments; the message is a clause with the reason."""


class NamesNothing(NotJudgeable):
    """A request whose arguments name no queries or keys: outside of the pool, or NaN of unwritten memory, usually."""

    def __init__(self, breach: Breach) -> None:
        super().__init__(breach.text)
        self.breach = breach


def parts_of(case: CallCase, index: int) -> int:
    """Return the number of parts of a call that are judged one by one, each with results of its own."""
    try:
        return max(1, len(planned_parts(case, index)))
    except ValueError:
        return 1


def asked(case: CallCase, index: int, contract: Contract, *, part: int = 0) -> CallCase:
    """Keep the calls up to `index`, with the right answer to that one's arguments, or to those of a part of it.

    Raises NotJudgeable.
    """
    if case.calls[index].op in OPS:
        return _asked_states(case, index)
    call = AskedCall(case, index, part=part)
    requests = [expected for request in range(len(call.spans)) for expected in call.expected(request)]
    return call.with_answer(requests, lse=contract.lse is not None)


def _asked_states(case: CallCase, index: int) -> CallCase:
    """Return the calls up to a recurrence with its right outputs and states. Raises NotJudgeable."""
    call = case.calls[index]
    try:
        found = asked_states(call.op, literal_arguments(case, index), ALPHA)
    except NamesNoState as error:
        raise NamesNothing(error.breach) from error
    except (ValueError, KeyError, IndexError) as error:
        raise NotJudgeable(f"its arguments don't fit each other: {error}") from error
    shelf = _Shelf(MAX_KEY_BYTES)
    expected = tuple(
        ExpectedTensor(name=each.name, view=view, right=shelf.copied(each.right), bound=shelf.copied(each.bound))
        for each in found
        if isinstance(view := call.arguments[each.name], View)
    )
    return replace(
        case, calls=case.calls[: index + 1], buffers=(*case.buffers, *shelf.copies), expected=expected, answer=None
    )


class AskedCall:
    """The requests in the arguments of call `index`, or of one part of it, and the attention due to each.

    `silent` are the requests whose rows the kernel leaves unwritten, since they have no keys. Keys and values on pages
    are copied into buffers of their own, at most `most_bytes` in all. Raises NotJudgeable for a call that does not say
    which keys every request has.
    """

    def __init__(self, case: CallCase, index: int, *, part: int = 0, most_bytes: int = MAX_KEY_BYTES) -> None:
        self._case, self._index = case, index
        try:
            parts = planned_parts(case, index)
        except ValueError as error:
            raise NotJudgeable(str(error)) from error
        read, planned = (parts[part].case, parts[part].entry) if parts else (case, None)
        call = read.calls[index]
        known = entry_points().get(call.op)
        entry = known or planned
        if entry is None or (known is not None and known.masked):
            raise NotJudgeable("the meaning of its arguments is unknown")
        arguments = literal_arguments(read, index)
        try:
            parameters, self.spans = entry.parameters(arguments), entry.spans(arguments)
            wild = next(iter(planned.breaches(arguments)), None) if planned is not None else None
            self._parts = _Parts(call, parameters, arguments)
            self.out = flat(self._parts.view(Role.OUT), 3)
            self._keys = _Keys(self._parts, self.out.shape[-1], most_bytes)
            self._query = self._keys.query()
            self._lse = flat(self._parts.view(Role.LSE), 2) if self._parts.has(Role.LSE) else None
            self._scales = [_scale(arguments, "bmm1_scale", "softmax_scale"), _scale(arguments, "bmm2_scale")]
            self.causal = _is_causal(arguments)
            self._window_left = window_of(arguments)
        except ValueError as error:
            raise NotJudgeable(str(error)) from error
        if wild is not None:
            raise NamesNothing(wild)
        self._soft_cap = _soft_cap(arguments)
        _check(self.spans, self._query)
        self._masks = [_mask(arguments, span, known, planned) for span in self.spans]
        leaves_empty = entry.leaves_empty_rows(arguments)
        self.silent = [n for n, span in enumerate(self.spans) if leaves_empty and span.q_len and not span.kv_len]

    def expected(self, request: int) -> tuple[Expected, ...]:
        """Return the rows of a request, none for a silent one; without a mask one by one, each seeing all keys.

        Raises NamesNothing, and NotJudgeable for keys outside of the call's tensors, or too many of them.
        """
        span = self.spans[request]
        if request in self.silent:
            return ()
        for query in self._parts.tensors(Role.QUERY):
            _check_written(span, query, request)
        key, value = self._keys.of(span, request)
        if key.shape[-1] != self._query.shape[-1]:
            raise NotJudgeable("its cache does not hold keys of its queries' head dim, such as one of NVFP4")
        drawn = self._masks[request]
        count = max(span.q_len, 1) if self.causal or drawn is not None else 1
        mask = None if drawn is None else self._keys.copied(drawn)
        return tuple(
            Expected(
                first_row=first,
                query=rows(self._query, first, min(count, span.q_len)),
                key=key,
                value=value,
                mask=mask,
            )
            for first in range(span.first_row, span.first_row + span.q_len, count)
        )

    def with_answer(self, requests: Sequence[Expected], *, lse: bool) -> CallCase:
        """Return the calls up to this one with the right answer for these requests, and for their LSE if it has one."""
        answer = CallAnswer(
            out=self.out,
            lse=self._lse if lse else None,
            sinks=self._parts.view(Role.SINKS) if self._parts.has(Role.SINKS) else None,
            requests=tuple(requests),
            bmm1_scale=self._scales[0],
            bmm2_scale=self._scales[1],
            window_left=self._window_left,
            soft_cap=self._soft_cap,
        )
        calls, buffers = self._case.calls[: self._index + 1], (*self._case.buffers, *self._keys.copies)
        return replace(self._case, calls=calls, buffers=buffers, answer=answer)


def _mask(
    arguments: Mapping[str, Any], span: RequestSpan, known: EntryPoint | None, planned: PlannedEntry | None
) -> torch.Tensor | None:
    """Return the mask of a request in the arguments of a known op, or of the only one of a planned run."""
    if known is not None:
        return known.mask(arguments, span)
    return None if planned is None else planned.mask(arguments)


def _is_causal(arguments: Mapping[str, Any]) -> bool:
    causal = arguments.get("causal", arguments.get("is_causal", True))
    if not isinstance(causal, int):
        raise NotJudgeable("whether it is causal is neither true nor false")
    # In FlashAttention, a window without keys after a row's own.
    return bool(causal) or arguments.get("window_right") == 0


def _soft_cap(arguments: Mapping[str, Any]) -> float:
    cap = arguments.get("logits_soft_cap")
    return float(max(cap, 0.0)) if isinstance(cap, int | float) and math.isfinite(cap) else 0.0


def _scale(arguments: Mapping[str, Any], *names: str) -> float:
    """Return a factor of one of these names, 1 by default. Raises NotJudgeable for anything but a single number."""
    name = next((name for name in names if name in arguments), names[0])
    scale = arguments.get(name, 1.0)
    if isinstance(scale, torch.Tensor):
        scale = scale.item() if scale.numel() == 1 else described(scale)
    if not isinstance(scale, int | float):
        raise NotJudgeable(f"{name} is {scale}, not a single number")
    if not math.isfinite(scale):
        raise NotJudgeable(f"{name} is {scale}: no row is a number")
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


def _check_written(span: RequestSpan, query: torch.Tensor, request: int) -> None:
    """Refuse queries that hold NaN, of a request that has keys."""
    tokens = query.flatten(0, query.ndim - 3)[span.first_row :][: span.q_len]
    if span.kv_len and bool(tokens.float().isnan().any()):
        text = f"the queries of request {request} hold NaN: the rows that its strides name were never written"
        raise NamesNothing(Breach(("query",), text, "FlashInfer's docstring of query: its tokens", request))


class _Parts:
    """The tensors of one call by their roles."""

    def __init__(self, call: Call, parameters: Sequence[Parameter], arguments: Mapping[str, Any]) -> None:
        views, tensors = dict(named_views(call.arguments)), dict(tensors_of(arguments))
        self._found: dict[Role, list[tuple[Parameter, View, torch.Tensor]]] = {}
        for parameter in parameters:
            entry = (parameter, views[parameter.name], tensors[parameter.name])
            self._found.setdefault(parameter.role, []).append(entry)

    def has(self, role: Role) -> bool:
        """Return whether the call has a tensor of this role."""
        return role in self._found

    def names(self, role: Role) -> list[str]:
        """Return the arguments of a role."""
        return [parameter.name for parameter, _, _ in self._found.get(role, [])]

    def view(self, role: Role) -> View:
        """Return the first tensor of a role. Raises NotJudgeable if there is none."""
        if role not in self._found:
            raise NotJudgeable(f"it has no tensor of its {role}")
        return self._found[role][0][1]

    def tensors(self, role: Role) -> list[torch.Tensor]:
        """Return the contents of all tensors of a role, such as the parts of a query. Raises as `view`."""
        self.view(role)
        return [tensor for _, _, tensor in self._found[role]]

    def caches(self) -> tuple[list[torch.Tensor], torch.Tensor] | None:
        """Return the keys of all pages, in parts of their head dim, and the values; None without pages.

        Each is [pages, slots, kv heads, dim]. The values of latents are the first part of the keys.
        """
        if not self.has(Role.CACHE):
            return None
        found = self._found[Role.CACHE]
        if len(found) > 2:
            raise NotJudgeable("its KV cache has more than two parts")
        members = [member for parameter, _, tensor in found for member in token_major(parameter, tensor)]
        latent = all("kv heads" not in parameter.axes for parameter, _, _ in found)
        return (members, members[0]) if latent else (members[:1], members[-1])


class _Shelf:
    """Copies of tensors in buffers of their own, of at most `most_bytes` in all."""

    def __init__(self, most_bytes: int) -> None:
        self._most = self._left = most_bytes
        self.copies: list[Buffer] = []

    def copied(self, content: torch.Tensor) -> View:
        """Copy a tensor into a buffer of its own. Raises NotJudgeable beyond the limit."""
        content = content.contiguous()
        self._left -= content.nbytes
        if self._left < 0:
            raise NotJudgeable(f"its requests have more than {self._most >> 20} MiB of keys and values")
        name = f"asked for, {len(self.copies)}"
        data = ctypes.string_at(content.data_ptr(), content.nbytes)
        self.copies.append(Buffer(name=name, dtype=DType.of(content.dtype), size=content.numel(), bits=pack(data)))
        return View(buffer=name, shape=tuple(content.shape), stride=tuple(content.stride()))


class _Keys(_Shelf):
    """The keys and values of requests. Those from pages are gathered into buffers of their own: `copies`."""

    def __init__(self, parts: _Parts, dim: int, most_bytes: int) -> None:
        super().__init__(most_bytes)
        self._parts, self._dim = parts, dim
        self._caches = parts.caches()
        self._named = [name for role in (Role.PAGE_TABLE, Role.KV_LENGTHS) for name in parts.names(role)]

    def query(self) -> View:
        """Return the queries [tokens, q heads, qk dim]; parts of their head dim are joined in a buffer of their own."""
        parts = self._parts.tensors(Role.QUERY)
        return flat(self._parts.view(Role.QUERY), 3) if len(parts) == 1 else self.copied(_joined(parts))

    def of(self, span: RequestSpan, request: int) -> tuple[View, View]:
        """Return keys [kv_len, kv heads, qk dim] and values [kv_len, kv heads, vo dim] of a request."""
        if self._caches is not None:
            if self._parts.has(Role.KEY):
                return self._behind_prefix(span, request)
            keys, values = self._caches
            key = _joined([_gathered(part, span, request, self._named) for part in keys])
            return self.copied(key), self.copied(_gathered(values[..., : self._dim], span, request, self._named))
        packed = [rows(self._parts.view(role), span.first_key, span.kv_len) for role in (Role.KEY, Role.VALUE)]
        for view, role in zip(packed, (Role.KEY, Role.VALUE), strict=True):
            if span.first_key < 0 or span.first_key + span.kv_len > self._parts.view(role).shape[0]:
                raise NotJudgeable(f"the keys of a request are not among {list(view.shape)}")
        return packed[0], packed[1]

    def _behind_prefix(self, span: RequestSpan, request: int) -> tuple[View, View]:
        """Return the keys and values of a request on pages, behind those that all requests share."""
        assert self._caches is not None
        (keys,), values = self._caches
        key, value = (self._parts.tensors(role)[0] for role in (Role.KEY, Role.VALUE))
        paged = dataclasses.replace(span, kv_len=span.kv_len - key.shape[0])
        both = ((key, keys), (value, values))
        key, value = (torch.cat((prefix, _gathered(cache, paged, request, self._named))) for prefix, cache in both)
        return self.copied(key), self.copied(value)


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join tensors of one dtype along their last axis."""
    if len({part.dtype for part in parts}) > 1 or len({part.shape[:-1] for part in parts}) > 1:
        raise NotJudgeable(f"its {' and '.join(map(described, parts))} can't be parts of one tensor")
    return torch.cat(list(parts), dim=-1) if len(parts) > 1 else parts[0]


def _gathered(cache: torch.Tensor, span: RequestSpan, request: int, named: Sequence[str]) -> torch.Tensor:
    """Gather the tokens of a request from its pages, which the arguments `named` give it."""
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
                tuple(named),
                f"request {request} has {span.kv_len} keys by {' and '.join(named[1:]) or 'its plan'}, and the one at "
                f"{first}, slot {first % size} of page {span.pages[first // size]}, holds NaN: it was never written",
                "FlashInfer's docstring of seq_lens: the KV length of each request"
                if "seq_lens" in named
                else "lengths and pages of a request are those of keys that were written",
                request,
            )
        )
    return tokens
