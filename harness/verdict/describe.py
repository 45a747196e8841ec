"""Describing a case in words and numbers, readable at a glance, within 80 columns."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from textwrap import fill

import msgspec

from attnfuzz.harness.verdict.wording import count
from attnfuzz.reference.calls import REPLAY, Argument, Call, CallCase, View
from attnfuzz.reference.case import Case, Launch, Request, SharedKeys, Step
from attnfuzz.reference.case_file import case_id

_WIDTH = 80
_PLACEMENT = ("pages", "padded_slot", "views", "workspace", "outputs", "max_len_slack", "serving", "guard", "pace")
_NUMBERS = ("mask", "values", "magnitude", "scales", "rope", "chunk_capacity", "seed")


def describe(case: Case) -> str:
    """Return lines for the geometry, each step with its requests and padding, and non-default fields."""
    lines = [_wrapped(f"case {case_id(case)} for {case.backend}", "")]
    lines.append(_wrapped(_geometry(case), "geometry  "))
    slots_matter = any(_moves(step) for step in case.steps) or len(case.steps) > 1
    lines += [_wrapped(_step(step, slots=slots_matter), f"step {index:<5}") for index, step in enumerate(case.steps)]
    for label, names in (("memory", _PLACEMENT), ("numbers", _NUMBERS)):
        particular = ", ".join(_particular(case, names))
        if particular:
            lines.append(_wrapped(particular, f"{label:<10}"))
    for label, chosen in (("call", case.arguments), ("before", case.life)):
        if chosen:
            lines.append(_wrapped(", ".join(chosen), f"{label:<10}"))
    if case.past:
        lines.append(_wrapped(f"continues after {'; '.join(map(str, case.past))}", "known     "))
    if case.relation is not None:
        lines.append(_wrapped(f"compared with a second run: {case.relation.words}", "relation  "))
    return "\n".join(lines)


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


def _geometry(case: Case) -> str:
    geometry = case.geometry
    heads = f"{count(geometry.q_heads, 'query head')} on {count(geometry.kv_heads, 'KV head')}"
    dims = f"head dim {geometry.head_dim_qk}"
    if geometry.head_dim_vo != geometry.head_dim_qk:
        dims = f"head dims {geometry.head_dim_qk} (qk) and {geometry.head_dim_vo} (vo)"
    # Neither layout is the plain one: servers have HND, functions NHD.
    parts = [heads, dims, f"pages of {geometry.page_size} ({geometry.kv_layout})", str(geometry.dtype)]
    if geometry.kv_dtype is not geometry.dtype:
        parts[-1] += f"{' queries, not quantised,' * case.queries.kept} on {geometry.kv_dtype} KV"
    if case.queries.scale != 1:
        parts.append(f"query scale {case.queries.scale:g}")
    if case.shared_keys != SharedKeys():
        parts.append(_shared_keys(case.shared_keys))
    if geometry.window_left >= 0:
        parts.append(f"window of {count(geometry.window_left, 'key')} to the left")
    if geometry.sinks:
        parts.append("sinks")
    if geometry.soft_cap:
        parts.append(f"soft cap {geometry.soft_cap:g}")
    if geometry.latent is not None:
        latent = geometry.latent
        parts.append(f"latent {latent.rank} + rope {latent.rope} (prefill: nope {latent.nope}, vo {latent.vo})")
    return ", ".join(parts)


def _shared_keys(shared: SharedKeys) -> str:
    by = shared.interleave.value.replace("_", " ")
    return f"keys on {shared.ranks} ranks by {by}{', exchanged all to all' * shared.all_to_all}"


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


def _particular(case: Case, names: Iterable[str]) -> Iterator[str]:
    """Yield name and value of each non-default field, also in groups of fields."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(case)}
    for name in names:
        value, default = getattr(case, name), defaults[name]
        if isinstance(value, msgspec.Struct):
            inner = [(field.name, getattr(value, field.name), field.default) for field in msgspec.structs.fields(value)]
            changed = [f"{name}.{field} {_text(content)}" for field, content, plain in inner if content != plain]
            yield from changed or ([] if value == default else [name])
        elif value != default:
            yield f"{name} {_text(value)}"


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe_calls(case: CallCase, *, notes: bool = True) -> str:
    """Return lines for the case and each of its calls, with the shapes of tensors and scalars, and for its notes."""
    lines = [f"case {case_id(case)} for {case.backend}, made of calls", *call_lines(case)]
    if case.answer is None:
        lines.append("No correct output is given: only accesses, canaries, inputs and exceptions are checked.")
    if notes:
        lines += [_wrapped(text, "note      ") for text in case.notes]
    return "\n".join(lines)


def call_lines(case: CallCase) -> Iterator[str]:
    """Yield each call, with the shapes of tensors and scalars."""
    for index, call in enumerate(case.calls):
        arguments = ", ".join(f"{name} {_words(value)}" for name, value in call.arguments.items())
        yield _wrapped(f"{_call(call)}: {arguments}", f"call {index:<5}")


def _call(call: Call) -> str:
    """Return a call's function, with the object that it is on or makes, and the graph that it is captured into."""
    if call.op == REPLAY:
        return f"replay of {call.graph}"
    method = f"{call.on}.{call.op.rpartition('.')[2]}" if call.on else call.op
    words = f"{call.makes} = {method}" if call.makes else method
    return f"{words}, captured into {call.graph}" if call.graph else words


def _words(value: Argument) -> str:
    if isinstance(value, View):
        return str(list(value.shape))
    if isinstance(value, list):
        return f"({', '.join(_words(item) for item in value)})"
    return str(value)
