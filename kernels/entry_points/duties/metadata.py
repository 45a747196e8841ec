"""Checks that lengths and page ids are dense int32, with a row for each request of the batch.

Kernels read them by raw pointer, without any check.
"""

from collections.abc import Iterator

import torch

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.meaning.entry_point import Breach, listed
from attnfuzz.kernels.meaning.forms import METADATA, described, tensor_of

_DTYPE = "FlashInfer casts its pointer to int*; docstrings of seq_lens (uint32) and cum_seq_lens_q (int32)"
_STRIDE = "FlashInfer passes its pointer without a stride"


def misread(call: Attention) -> Iterator[Breach]:
    """Yield metadata of another dtype, or with gaps between the numbers of a row.

    Gaps between the rows of a page table are legal: no docstring asks for dense ones.
    """
    for parameter in call.parameters:
        if parameter.role not in METADATA:
            continue
        name, tensor = parameter.name, tensor_of(call.arguments, parameter.name)
        if tensor.dtype not in (torch.int32, torch.uint32):
            text = f"{name} is {described(tensor)}, but must be int32: {_consequence(tensor)}"
            yield Breach((name,), text, _DTYPE)
        elif tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            text = (
                f"{name} has stride {tensor.stride(-1)}: a kernel that assumes dense numbers reads the gaps between "
                "them"
            )
            yield Breach((name,), text, _STRIDE)


def _consequence(tensor: torch.Tensor) -> str:
    if tensor.dtype is torch.int64:
        return "read as int32, every second number is the upper half of the one before, and the last ones are missed"
    return "its bytes are read as other numbers"


_SHAPES = "FlashInfer docstrings: metadata of shape [batch_size, ...] or [batch_size + 1]"


def batch(call: Attention) -> Iterator[Breach]:
    """Yield metadata of another number of requests, too few first."""
    rows = dict(_requests_in(call))
    if call.checked_table and call.table in rows and rows[call.table] != call.batch:
        text = f"{call.batch_text}, but {_counted({call.table: rows.pop(call.table)})}: FlashInfer rejects the call"
        yield Breach(
            (*call.batch_from, call.table),
            text,
            "FlashInfer compares the rows of block_tables with the batch (MLA decode, fmha_v2)",
        )
    short = {name: has for name, has in rows.items() if has < call.batch}
    if short:
        first = min(short.values())
        requests = f"request {first} is" if call.batch == first + 1 else f"requests {first} to {call.batch - 1} are"
        text = (
            f"{call.batch_text}, but {_counted(short)}: {requests} read past their ends, so "
            "any lengths, offsets and page ids may be read"
        )
        yield Breach((*call.batch_from, *short), text, f"{_SHAPES}; the kernels don't check it", first)
    long = {name: has for name, has in rows.items() if has > call.batch}
    if long:
        text = f"{call.batch_text}, but {_counted(long)}: request {call.batch} and all after it get no output"
        yield Breach((*call.batch_from, *long), text, _SHAPES, call.batch)


def _requests_in(call: Attention) -> Iterator[tuple[str, int]]:
    """Yield the number of requests in each tensor."""
    for parameter in call.parameters:
        if parameter.role not in METADATA or parameter.name in call.batch_from:
            continue
        shape = tensor_of(call.arguments, parameter.name).shape
        for axis, size in zip(parameter.axes, shape, strict=True):
            if axis in ("requests", "requests + 1"):
                yield parameter.name, size if axis == "requests" else max(0, size - 1)


def _counted(rows: dict[str, int]) -> str:
    """Word the counts, as in "seq_lens and block_tables describe 10 requests"."""
    by_count: dict[int, list[str]] = {}
    for name, has in rows.items():
        by_count.setdefault(has, []).append(name)
    return " and ".join(
        f"{listed(names)} {'describes' if len(names) == 1 else 'describe'} {has} request{'' if has == 1 else 's'}"
        for has, names in by_count.items()
    )
