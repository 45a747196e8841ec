"""Rows that a ragged call leaves unwritten, and that a merge then reads: no precondition of either call alone."""

from collections.abc import Iterator

from attnfuzz.harness.calls.literal_arguments import literal_arguments
from attnfuzz.kernels.entry_points import Breach
from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.kernels.entry_points.context import Ragged, leaves_empty_rows
from attnfuzz.reference.calls import Call, CallCase, View, named_views

_SOURCE = 'FlashInfer docstring of trtllm_ragged_attention_deepseek: "The default assumes all rows are active"'
_OVERWRITE = frozenset({"fixup_zero_kv_rows", Ragged.name})
_MERGES = frozenset({"merge_state_in_place", "merge_state"})


def reads_of_unwritten_rows(calls: CallCase) -> Iterator[tuple[int, Breach]]:
    """The merges that read what a ragged call has left unwritten and nobody wrote since, by their index.

    Whoever writes to such an output between the two, or repairs it, is taken to have written the right rows.
    """
    for first, call in enumerate(calls.calls):
        idle = _idle_rows(calls, first) if call.op == Ragged.name else {}
        out = call.arguments.get("out")
        if not idle or not isinstance(out, View):
            continue
        for index in range(first + 1, len(calls.calls)):
            later = calls.calls[index]
            if _written(later, out) or (later.op in _OVERWRITE and _takes(later, out)):
                break
            read = _read(calls, index, idle) if later.op in _MERGES and _takes(later, out) else {}
            if read:
                request, row = next(iter(read.items()))
                text = (
                    f"call {first} ({call.op}) leaves row {row} of its output unwritten, since request {request} has "
                    f"no keys, and call {index} ({later.op}) reads it: the result depends on what was there before"
                )
                yield index, Breach(("out", "seq_lens"), text, _SOURCE, request)
                break


def _read(calls: CallCase, index: int, idle: dict[int, int]) -> dict[int, int]:
    """Those of the idle rows that a merge does not mask out."""
    mask = literal_arguments(calls, index).get("mask")
    return {request: row for request, row in idle.items() if mask is None or bool(mask[row])}


def _idle_rows(calls: CallCase, index: int) -> dict[int, int]:
    """The first row of each request that has queries and no keys, where the call leaves them unwritten."""
    arguments = literal_arguments(calls, index)
    if not leaves_empty_rows(Ragged.name, arguments):
        return {}
    try:
        spans = ENTRY_POINTS[Ragged.name].spans(arguments)
    except ValueError:
        return {}
    return {n: span.first_row for n, span in enumerate(spans) if span.inside and span.q_len > 0 and not span.kv_len}


def _takes(call: Call, out: View) -> bool:
    return any(view.buffer == out.buffer for _, view in named_views(call.arguments))


def _written(call: Call, out: View) -> bool:
    return any(write.name == out.buffer for write in call.writes)
