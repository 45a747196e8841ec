"""Edits that make scalars, memory and contents of calls plain."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace

from attnfuzz.harness.calls.literal_buffers import with_content
from attnfuzz.harness.reduce.cut import trim
from attnfuzz.harness.reduce.meaning import Meaning
from attnfuzz.harness.reduce.placed_views import Place, tidy, views_of, with_contents, with_views
from attnfuzz.harness.reduce.units import Uncuttable
from attnfuzz.kernels.meaning import Role
from attnfuzz.reference.calls import Buffer, Call, CallCase, View, content_of
from attnfuzz.reference.case import Guard, Outputs
from attnfuzz.reference.edits.cuts import lower

_WORTH_IT = 8
"""A workspace is not shrunk by less than one part in this many, because its exact need doesn't matter."""

_ALIGNED = 256
"""Alignment of workspaces in bytes. One that ends at a guard page begins where its length puts it."""

_SINKS = ("sinks", "attention_sinks")
_FLOATS = (Role.QUERY, Role.KEY, Role.VALUE, Role.CACHE, Role.SINKS)


def use_defaults(case: CallCase) -> Iterator[CallCase]:
    """Yield the default guard and fillings of memory. Notes are kept, because they state the calls' origin."""
    plain: dict[str, Any] = {"guard": Guard.RIGHT, "outputs": Outputs.POISONED, "dirty": False}
    yield replace(case, **plain)
    for name, value in plain.items():
        yield replace(case, **{name: value})


def drop_features(case: CallCase) -> Iterator[CallCase]:
    """Yield calls and answers without window, sinks or scales, and without LSE if it is unused."""
    yield _with(case, dict.fromkeys(_SINKS), sinks=None)
    if not _used_lse(Meaning(case)):
        yield _with(case, {"lse": None, "return_lse": False})
    for name, plain in (("window_left", -1), ("bmm1_scale", 1.0), ("bmm2_scale", 1.0)):
        given = {call.arguments[name] for call in case.calls if isinstance(call.arguments.get(name), int | float)}
        # Disagreement may be the call's fault, or the window may be part of a mask among its arguments.
        if case.answer is None or given == {getattr(case.answer, name)}:
            yield _with(case, {name: plain}, **{name: plain})


def state_no_more(case: CallCase) -> Iterator[CallCase]:
    """Yield exact stated maxima."""
    spans = [span for spans in Meaning(case).spans for span in spans]
    q_len = max((span.q_len for span in spans), default=0)
    kv_len = max((span.kv_len for span in spans), default=0)
    longest = {"max_q_len": q_len, "max_kv_len": kv_len, "max_seq_len": kv_len}
    yield _with(case, longest)
    for name, value in longest.items():
        yield _with(case, {name: value})


def shrink_workspace(case: CallCase) -> Iterator[CallCase]:
    """Yield a smaller workspace."""
    for site in Meaning(case).of_role(Role.WORKSPACE):
        name, length = site.view.buffer, site.view.shape[0]
        if all(view == site.view for _, view in views_of(case) if view.buffer == name):
            for left in lower(length // _ALIGNED, 1):
                if length - left * _ALIGNED < length // _WORTH_IT:
                    break
                yield _with_bytes(case, name, left * _ALIGNED)


def _with_bytes(case: CallCase, name: str, length: int) -> CallCase:
    """Cut a buffer that all views see whole to a length. Done directly, since it may be very long."""

    def shortened(buffer: Buffer) -> Buffer:
        if buffer.name != name:
            return buffer
        content = content_of(buffer)
        return replace(buffer, size=length) if content is None else with_content(buffer, content[:length])

    def narrowed(_place: Place, view: View) -> View:
        return replace(view, shape=(length,)) if view.buffer == name else view

    return with_contents(with_views(case, narrowed), shortened)


def lay_out_plainly(case: CallCase) -> Iterator[CallCase]:
    """Yield buffers without unreached memory between rows: all buffers, then one."""
    names = tuple(buffer.name for buffer in case.buffers)
    for some in (names, *((name,) for name in names)):
        try:
            yield trim(case, some)
        except Uncuttable:
            continue


def simplify_contents(case: CallCase) -> Iterator[CallCase]:
    """Yield ones for all queries, keys and values, else only their signs, with and without the NaN of poison."""
    names = _floating(case)
    if case.answer is not None and _strange_inputs(case) - names:
        # It is unknown which of these contents belong together.
        return
    for change in (torch.ones_like, torch.sign):
        yield _mapped(case, names, partial(_finite, change))
        yield _mapped(case, names, partial(_where_finite, change))


Change = Callable[[torch.Tensor], torch.Tensor]


def _finite(change: Change, content: torch.Tensor) -> torch.Tensor:
    return change(content.nan_to_num(0.0, 1.0, -1.0))


def _where_finite(change: Change, content: torch.Tensor) -> torch.Tensor:
    return torch.where(content.isfinite(), change(content), content)


def _used_lse(meaning: Meaning) -> bool:
    """Return whether the answer or another call uses a call's LSE."""
    answer = meaning.case.answer
    if answer is not None and answer.lse is not None:
        return True
    given = {(site.view.buffer, site.call) for site in meaning.of_role(Role.LSE)}
    return any(site.view.buffer == name and site.call != call for name, call in given for site in meaning.sites)


def _mapped(case: CallCase, names: set[str], change: Change) -> CallCase:
    """Change the elements of these buffers alike, so that the answer stays right."""

    def changed(buffer: Buffer) -> Buffer:
        content = content_of(buffer) if buffer.name in names else None
        if content is None:
            return buffer
        return with_content(buffer, change(content.float()).to(content.dtype), buffer.offset)

    return with_contents(case, changed)


def _floating(case: CallCase) -> set[str]:
    """Return the buffers of queries, keys and values, in calls and in the answer."""
    names = {site.view.buffer for site in Meaning(case).of_role(*_FLOATS)}
    if case.answer is not None:
        for expected in case.answer.requests:
            names |= {expected.query.buffer, expected.key.buffer, expected.value.buffer}
    floating = (buffer for buffer in case.buffers if buffer.dtype.torch_dtype.is_floating_point)
    return {buffer.name for buffer in floating if buffer.name in names}


def _strange_inputs(case: CallCase) -> set[str]:
    """Return the buffers of numbers that a call of unknown meaning gets."""
    strangers = Meaning(case).strangers
    seen = {view.buffer for place, view in views_of(case) if place[0] == "call" and place[1] in strangers}
    filled = (buffer for buffer in case.buffers if buffer.dtype.torch_dtype.is_floating_point)
    return {buffer.name for buffer in filled if buffer.name in seen and buffer.size and content_of(buffer) is not None}


def _with(case: CallCase, arguments: dict[str, Any], **answer: Any) -> CallCase:
    """Set these arguments in every call that has them, and these fields of the answer."""

    def changed(call: Call) -> Call:
        return replace(
            call, arguments=call.arguments | {name: new for name, new in arguments.items() if name in call.arguments}
        )

    calls = tuple(changed(call) for call in case.calls)
    answered = None if case.answer is None else replace(case.answer, **answer)
    return tidy(replace(case, calls=calls, answer=answered))


EDITS = (use_defaults, drop_features, state_no_more, lay_out_plainly, simplify_contents, shrink_workspace)
