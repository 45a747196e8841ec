"""The position of an element in a call's tensor, in words; also of an element outside it."""

from collections.abc import Mapping, Sequence

import torch

from attnfuzz.kernels.meaning.entry_point import Arguments, EntryPoint, Parameter, RequestSpan, Role
from attnfuzz.kernels.meaning.forms import tensor_of

_ONE = {
    "requests": "request",
    "requests + 1": "entry",
    "tokens": "row",
    "tokens per request": "query",
    "q heads": "head",
    "kv heads": "KV head",
    "qk dim": "element",
    "vo dim": "element",
    "pages": "page",
    "slots": "slot",
    "columns": "column",
    "kv tokens": "key row",
    "bytes": "byte",
}
_LETTERS = {"K and V": "KV", "Q, K and V": "QKV"}
_SEVERAL = {"requests + 1": "entries", "tokens per request": "queries"}


def place_of(entry: EntryPoint, arguments: Arguments, name: str, element_offset: int) -> str:
    """Word the element `element_offset` elements behind the first of a tensor: "page 7 (of pages 0 to 6), slot 3".

    Strides are followed beyond the tensor's ends, and into their gaps. The request with that query or key follows in
    brackets. Raises KeyError if the call has no such tensor, ValueError for impossible tensors.
    """
    parameters = {parameter.name: parameter for parameter in entry.parameters(arguments)}
    parameter, tensor = parameters[name], tensor_of(arguments, name)
    index, gap = _index(tensor, element_offset)
    words = [_word(parameter, tensor, axis, at) for axis, at in sorted(index.items())]
    if gap:
        words.append(f"{gap} element{'' if gap == 1 else 's'} into the gap after it")
    named = {parameter.axes[axis]: at for axis, at in index.items()}
    owner = _owner(parameter.role, named, entry.spans(arguments), _page_size(parameter, tensor))
    return ", ".join(words) + (f" ({owner})" if owner else "")


def _index(tensor: torch.Tensor, offset: int) -> tuple[Mapping[int, int], int]:
    """Return the index on each axis, the outermost possibly beyond its size, and the distance into a gap behind it."""
    axes = [axis for axis in range(tensor.ndim) if tensor.stride(axis)]
    axes.sort(key=lambda axis: (tensor.stride(axis), tensor.shape[axis]), reverse=True)
    index: dict[int, int] = {}
    for depth, axis in enumerate(axes):
        at, rest = divmod(offset, tensor.stride(axis))
        if depth and at >= tensor.shape[axis]:
            inner = axes[depth:]
            return index, offset - sum((tensor.shape[each] - 1) * tensor.stride(each) for each in inner)
        index[axis], offset = at, rest
    return index, offset


def _word(parameter: Parameter, tensor: torch.Tensor, axis: int, at: int) -> str:
    counted, size = parameter.axes[axis], tensor.shape[axis]
    letters = _LETTERS.get(counted, "")
    if 0 <= at < len(letters):
        return letters[at]
    word = _ONE.get(counted, "index")
    if 0 <= at < size:
        return f"{word} {at}"
    several = _SEVERAL.get(counted, f"{word}s") if word != "index" else "indices"
    legal = f"of {several} 0 to {size - 1}" if size > 1 else f"of {word} 0 alone" if size else f"of no {word}"
    return f"{word} {at} ({legal})"


def _page_size(parameter: Parameter, tensor: torch.Tensor) -> int:
    return dict(zip(parameter.axes, tensor.shape, strict=True)).get("slots", 0)


def _owner(role: Role, named: Mapping[str, int], spans: Sequence[RequestSpan], page_size: int) -> str:
    """Name the request with that query or key."""
    if "tokens" in named:
        return _query(named["tokens"], spans)
    if "kv tokens" in named:
        keys = [(request, named["kv tokens"] - span.first_key) for request, span in enumerate(spans)]
        own = (f"key {key} of request {request}" for request, key in keys if 0 <= key < spans[request].kv_len)
        return next(own, "no request's" if spans else "")
    if role is Role.CACHE and "pages" in named:
        return _key(named["pages"], named.get("slots", 0), spans, page_size)
    return ""


def _query(row: int, spans: Sequence[RequestSpan]) -> str:
    for request, span in enumerate(spans):
        if span.first_row <= row < span.first_row + span.q_len:
            return f"query {row - span.first_row} of request {request}"
    return "no request's" if spans else ""


def _key(page: int, slot: int, spans: Sequence[RequestSpan], page_size: int) -> str:
    """Name the key in a slot; of a shared page, that of its first request."""
    users = [(request, span.pages.index(page)) for request, span in enumerate(spans) if page in span.pages]
    if not users:
        return "no request's" if spans else ""
    request, column = users[0]
    key, length = column * page_size + slot, spans[request].kv_len
    behind = f", past its last key {length - 1}" if key >= length else ""
    more = f"; {len(users)} requests have this page" if len(users) > 1 else ""
    return f"key {key} of request {request}{behind}{more}"
