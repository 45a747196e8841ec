"""Query rows are shared out among requests without a rest, one request behind the other, none longer than stated."""

from collections.abc import Iterator

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.entry_points.duties.wording import and_others
from attnfuzz.kernels.entry_points.entry_point import Breach
from attnfuzz.kernels.entry_points.spans import integers

_ROWS = "FlashInfer docstring of q_len_per_req: query has batch_size * q_len_per_req rows"
_CUMULATIVE = (
    "FlashInfer docstring of cum_seq_lens_q (MLA decode): it starts with 0, ends at query.size(0) and is monotonically "
    "non-decreasing"
)
_LONGEST = "FlashInfer docstrings of max_q_len: max sequence length for query; under-estimation is invalid"


def breaches(call: Attention) -> Iterator[Breach]:
    """Rows that make no whole request, cumulative lengths that are none, and requests beyond the stated maximum.

    Rows behind the last request are padding, which nobody has to answer.
    """
    rows = call.query_rows
    if call.cum_q is None:
        if call.q_len and "q_len_per_req" in call.batch_from and rows % call.q_len:
            text = (
                f"query has {rows} rows, no multiple of q_len_per_req {call.q_len}: the last {rows % call.q_len} of "
                "them are left unwritten"
            )
            yield Breach(call.batch_from, text, _ROWS)
    else:
        yield from _cumulative(call, call.cum_q)
    if call.max_q is not None:
        long = [request for request, span in enumerate(call.spans) if span.q_len > call.max_q.value]
        if long:
            text = (
                f"request {long[0]} has {call.spans[long[0]].q_len} queries, but {call.max_q.name} is "
                f"{call.max_q.value}{and_others(long)}: queries beyond the maximum may be left out"
            )
            yield Breach((call.max_q.name, call.cum_q or call.query), text, _LONGEST, long[0])


def _cumulative(call: Attention, name: str) -> Iterator[Breach]:
    ends, rows = integers(call.arguments[name])[: call.batch + 1], call.query_rows
    if ends and ends[0] != 0:
        yield Breach((name,), f"{name} starts at {ends[0]}: it is no sum of q lengths", _CUMULATIVE, 0)
    falls = [request for request in range(len(ends) - 1) if ends[request + 1] < ends[request]]
    if falls:
        at = falls[0]
        text = f"{name} falls from {ends[at]} to {ends[at + 1]} at request {at}{and_others(falls)}"
        yield Breach((name,), f"{text}: it has a q length below 0", _CUMULATIVE, at)
    beyond = [request for request in range(len(ends) - 1) if ends[request + 1] > rows]
    if beyond:
        at = beyond[0]
        text = (
            f"{name} puts request {at} in rows {ends[at]} to {ends[at + 1] - 1}, but {call.query} has {rows} rows"
            f"{and_others(beyond)}: they are read past the end of {call.query}, and written past that of out"
        )
        yield Breach((name, call.query), text, _CUMULATIVE, at)
