"""Smaller and plainer cases of recurrent state."""

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from attnfuzz.reference.edits.cuts import lower
from attnfuzz.reference.recurrent.case import StateCase, StateMode, StateOp, StateRow, StateStep

_PLAIN = (
    "guard",
    "outputs",
    "past",
    "move",
    "gap",
    "scattered",
    "padded_row",
    "stale",
    "normed",
    "strided",
    "gated",
    "biased",
    "activated",
    "transposed",
    "narrow",
    "no_skip",
    "no_step_bias",
    "no_softplus",
    "columns",
    "values",
    "state_dtype",
    "dtype",
)
_SMALL_SEEDS = (0, 1, 2, 3)


def with_steps(case: StateCase, steps: tuple[StateStep, ...]) -> StateCase:
    """Return the case with other steps, whose lanes are numbered in order, without those of no request."""
    used = sorted({row.lane for step in steps for row in step.rows})
    number = {lane: at for at, lane in enumerate(used)}
    return replace(
        case,
        steps=tuple(
            replace(step, rows=tuple(replace(row, lane=number[row.lane]) for row in step.rows)) for step in steps
        ),
    )


def fewer_steps(case: StateCase) -> Iterator[StateCase]:
    """Yield one step alone, then the case without one of its steps."""
    if len(case.steps) > 1:
        for step in case.steps:
            yield with_steps(case, (step,))
        for at in range(len(case.steps)):
            yield with_steps(case, case.steps[:at] + case.steps[at + 1 :])


def fewer_rows(case: StateCase) -> Iterator[StateCase]:
    """Yield the case without one of its requests, then without a request of one step."""
    if case.lanes > 1:
        for lane in range(case.lanes):
            steps = tuple(
                replace(step, rows=tuple(row for row in step.rows if row.lane != lane)) for step in case.steps
            )
            yield with_steps(case, steps)
    for at, step in enumerate(case.steps):
        for left_out in range(len(step.rows) if len(step.rows) + step.padding > 1 else 0):
            rows = step.rows[:left_out] + step.rows[left_out + 1 :]
            yield with_steps(case, _with(case, at, replace(step, rows=rows)))


def less_padding(case: StateCase) -> Iterator[StateCase]:
    """Yield the case with less padding, and with eager steps."""
    for at, step in enumerate(case.steps):
        for padding in lower(step.padding, 0):
            yield replace(case, steps=_with(case, at, replace(step, padding=padding)))
        if step.replayed:
            yield replace(case, steps=_with(case, at, replace(step, replayed=False)))


def fewer_tokens(case: StateCase) -> Iterator[StateCase]:
    """Yield the case with fewer tokens of one request in one step, or with fewer accepted."""
    for at, step in enumerate(case.steps):
        for number, row in enumerate(step.rows):
            changed: list[StateRow] = []
            if step.mode is not StateMode.DECODE:
                least = 0 if row.initial else 1
                changed += [replace(row, tokens=tokens) for tokens in lower(row.tokens, least)]
            if row.accepted > 1:
                changed += [replace(row, accepted=accepted) for accepted in range(1, row.accepted)]
            elif not row.accepted:
                changed.append(replace(row, accepted=1))
            for other in changed:
                rows = (*step.rows[:number], other, *step.rows[number + 1 :])
                yield replace(case, steps=_with(case, at, replace(step, rows=rows)))


def fewer_drafts(case: StateCase) -> Iterator[StateCase]:
    """Yield the case on a server with fewer drafts: without any, a verify is a decode."""
    for drafts in lower(case.drafts, 0):
        steps = []
        for step in case.steps:
            rows = tuple(_within(row, drafts, step.mode) for row in step.rows)
            decodes = step.mode is StateMode.VERIFY and not drafts
            steps.append(replace(step, rows=rows, mode=StateMode.DECODE if decodes else step.mode))
        yield replace(case, drafts=drafts, steps=tuple(steps))


def _within(row: StateRow, drafts: int, mode: StateMode) -> StateRow:
    if mode is not StateMode.VERIFY:
        return row
    tokens = min(row.tokens, drafts + 1) if drafts else 1
    return replace(row, tokens=tokens, accepted=min(row.accepted, drafts + 1))


def smaller_shape(case: StateCase) -> Iterator[StateCase]:
    """Yield the case with fewer heads, or smaller dims."""
    shape = case.shape
    for heads in lower(shape.heads, 1):
        yield replace(case, shape=replace(shape, heads=heads, value_heads=heads * (shape.value_heads // shape.heads)))
    if case.op is not StateOp.SSM_OF_CHANNELS:
        for group in lower(shape.value_heads // shape.heads, 1):
            yield replace(case, shape=replace(shape, value_heads=shape.heads * group))
    for name in ("value_heads",) if case.op is StateOp.SSM_OF_CHANNELS else ("key_dim", "value_dim"):
        for dim in dict.fromkeys((*_DIMS, *lower(getattr(shape, name), 1))):
            if dim < getattr(shape, name):
                yield replace(case, shape=replace(shape, **{name: dim}))
    if shape.key_dim == shape.value_dim:
        for dim in _DIMS:
            if dim < shape.key_dim:
                yield replace(case, shape=replace(shape, key_dim=dim, value_dim=dim))


_DIMS = (1, 2, 4, 8, 16, 32, 64)


def plain_fields(case: StateCase) -> Iterator[StateCase]:
    """Yield all fields of contents and memory at their defaults, then one of them, then smaller seeds."""
    defaults = _defaults()
    yield replace(case, **defaults)
    for name, default in defaults.items():
        yield replace(case, **{name: default})
    for gap in lower(case.gap, 0):
        yield replace(case, gap=gap)
    for seed in _SMALL_SEEDS:
        if seed < case.seed:
            yield replace(case, seed=seed)


def _defaults() -> dict[str, object]:
    fields = {each.name: each.default for each in msgspec.structs.fields(StateCase)}
    return {name: fields[name] for name in _PLAIN}


def _with(case: StateCase, at: int, step: StateStep) -> tuple[StateStep, ...]:
    return (*case.steps[:at], step, *case.steps[at + 1 :])


EDITS = (fewer_steps, fewer_rows, less_padding, fewer_drafts, fewer_tokens, smaller_shape, plain_fields)
"""All edits, those that remove most first."""
