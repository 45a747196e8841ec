"""Metadata has a row for each request of the batch that a kernel derives."""

from collections.abc import Iterator

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.entry_points.duties.wording import listed
from attnfuzz.kernels.entry_points.entry_point import Breach
from attnfuzz.kernels.entry_points.forms import METADATA, tensor_of

_SHAPES = "FlashInfer docstrings: metadata of shape [batch_size, ...] or [batch_size + 1]"


def breaches(call: Attention) -> Iterator[Breach]:
    """Metadata of another number of requests: first what has too few."""
    rows = dict(_rows(call))
    if call.checked_table and call.table in rows and rows[call.table] != call.batch:
        text = f"{call.batch_text}, but {_listed({call.table: rows.pop(call.table)})}: FlashInfer rejects the call"
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
            f"{call.batch_text}, but {_listed(short)}: {requests} read past their ends, where "
            "anything may be taken for lengths, offsets and page ids"
        )
        yield Breach((*call.batch_from, *short), text, f"{_SHAPES}; the kernels compare nothing", first)
    long = {name: has for name, has in rows.items() if has > call.batch}
    if long:
        text = f"{call.batch_text}, but {_listed(long)}: nobody answers request {call.batch} and what follows it"
        yield Breach((*call.batch_from, *long), text, _SHAPES, call.batch)


def _rows(call: Attention) -> Iterator[tuple[str, int]]:
    """The requests that each tensor tells of."""
    for parameter in call.parameters:
        if parameter.role not in METADATA or parameter.name in call.batch_from:
            continue
        shape = tensor_of(call.arguments, parameter.name).shape
        for axis, size in zip(parameter.axes, shape, strict=True):
            if axis in ("requests", "requests + 1"):
                yield parameter.name, size if axis == "requests" else max(0, size - 1)


def _listed(rows: dict[str, int]) -> str:
    """Such as "seq_lens and block_tables tell of 10 requests"."""
    by_count: dict[int, list[str]] = {}
    for name, has in rows.items():
        by_count.setdefault(has, []).append(name)
    return " and ".join(
        f"{listed(names)} {'tells' if len(names) == 1 else 'tell'} of {has} request{'' if has == 1 else 's'}"
        for has, names in by_count.items()
    )
