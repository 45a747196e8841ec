"""Describing a case in words and numbers, readable at a glance, within 80 columns."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from textwrap import fill

from attnfuzz.harness.verdict.wording import count
from attnfuzz.reference.calls import REPLAY, Argument, Call, CallCase, View
from attnfuzz.reference.case import Case, Launch, Request, Step
from attnfuzz.reference.case_file import case_id
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.features import TABLE

_WIDTH = 80


def describe(case: Case) -> str:
    """Return lines for the geometry, each step with its requests and padding, and non-default fields."""
    lines = [_wrapped(f"case {case_id(case)} for {case.backend}", "")]
    lines.append(_line(case, "geometry"))
    slots_matter = any(_moves(step) for step in case.steps) or len(case.steps) > 1
    lines += [_wrapped(_step(step, slots=slots_matter), f"step {index:<5}") for index, step in enumerate(case.steps)]
    lines += [_line(case, label) for label in ("memory", "values", "call", "before")]
    if case.past:
        lines.append(_wrapped(f"continues after {'; '.join(map(str, case.past))}", "known     "))
    lines.append(_line(case, "relation"))
    return "\n".join(filter(None, lines))


def _line(case: Case, label: str) -> str:
    """Return a line of features with its label, or "" if all have their defaults. The seed is among the values."""
    seed = f"seed {case.seed}" if label == "values" and case.seed else ""
    words = ", ".join(filter(None, (TABLE.printed(case, label), seed)))
    return _wrapped(words, f"{label:<10}") if words else ""


def _wrapped(text: str, label: str) -> str:
    """Return the text after its label. Words such as folder names stay whole, for searching."""
    return fill(
        text,
        _WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _step(step: Step, *, slots: bool) -> str:
    title = str(step.mode) if step.launch is Launch.EAGER else f"{step.launch} {step.mode}"
    if step.tokens_per_request > 1:
        title += f" of {step.tokens_per_request}"
    requests = "no requests" if step.idle else _requests(step.requests, slots=slots)
    parts = [f"{title}:", requests, _padding(step)]
    return " ".join(part for part in parts if part)


def _requests(requests: tuple[Request, ...], *, slots: bool) -> str:
    """Describe the requests in order, with runs of equal ones joined, and with slots if informative."""
    runs = []
    for (q_len, kv_len), run in groupby(requests, key=lambda request: (request.q_len, request.kv_len)):
        members = list(run)
        where = f"{_span(members)}: " if slots else ""
        times = f"{len(members)} x " if len(members) > 1 else ""
        runs.append(f"{times}({where}q {q_len}, kv {kv_len})")
    return ", ".join(runs)


def _span(run: list[Request]) -> str:
    """Describe the sequences of a run by their slots: the first and the last if they ascend one by one, else each."""
    slots = [request.slot for request in run]
    if len(slots) > 1 and slots == list(range(slots[0], slots[-1] + 1)):
        return f"slots {slots[0]} to {slots[-1]}"
    return f"slot{'s' * (len(slots) > 1)} {' '.join(map(str, slots))}"


def _moves(step: Step) -> bool:
    return [request.slot for request in step.requests] != list(range(len(step.requests)))


def _padding(step: Step) -> str:
    if step.launch is Launch.CAPTURE:
        return f"a graph for {count(step.padded_batch, 'request')}"
    if step.padded_batch > len(step.requests):
        return f"[padded: {count(step.padded_batch, 'row')} for {count(len(step.requests), 'request')}]"
    if step.padded_tokens > step.tokens:
        return f"[padded: {count(step.padded_tokens, 'token')} for {step.tokens}]"
    return ""


def describe_calls(case: CallCase, *, notes: bool = True) -> str:
    """Return lines for the case and each of its calls, with the shapes of tensors and scalars, and for its notes."""
    lines = [f"case {case_id(case)} for {case.backend}, made of calls", *call_lines(case)]
    if not case.judged:
        lines.append("No correct output is given: only accesses, canaries, inputs and exceptions are checked.")
    if notes:
        lines += [_wrapped(text, "note      ") for text in case.notes]
    return "\n".join(lines)


def call_lines(case: CallCase) -> Iterator[str]:
    """Yield each call, with scalars, and the dtypes and shapes of tensors."""
    dtypes = {buffer.name: buffer.dtype for buffer in case.buffers}
    for index, call in enumerate(case.calls):
        arguments = ", ".join(f"{name} {_words(value, dtypes)}" for name, value in call.arguments.items())
        yield _wrapped(f"{_call(call)}: {arguments}", f"call {index:<5}")


def _call(call: Call) -> str:
    """Return a call's function, with the object that it is on or makes, and the graph that it is captured into."""
    if call.op == REPLAY:
        return f"replay of {call.graph}"
    method = f"{call.on}.{call.op.rpartition('.')[2]}" if call.on else call.op
    words = f"{call.makes} = {method}" if call.makes else method
    return f"{words}, captured into {call.graph}" if call.graph else words


def _words(value: Argument, dtypes: Mapping[str, DType]) -> str:
    if isinstance(value, View):
        return f"{value.dtype or dtypes[value.buffer]}{list(value.shape)}"
    if isinstance(value, list):
        return f"({', '.join(_words(item, dtypes) for item in value)})"
    return str(value)
