"""Other ways to run a case: with another guard, other outputs, with or without a graph, alone, with other contents.

A failure that changes or disappears in one of them depends on that variation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from attnfuzz.harness.family import family_of
from attnfuzz.harness.reduce.transfers import captured
from attnfuzz.harness.triage.repeats import Repeated
from attnfuzz.harness.triage.result import Repetition, Variant, VariantOutcome
from attnfuzz.harness.verdict.failures import FAULTS
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import Buffer, CallCase
from attnfuzz.reference.case import Case, Guard, Launch, Outputs, Request, Workspace
from attnfuzz.reference.related import NotRelated, related
from attnfuzz.reference.relation import Relation
from attnfuzz.reference.validity import ImpossibleCase

_SEEDS = 3
"""Number of other contents to try: a failure for only some of them depends on values."""


@dataclass(frozen=True)
class Way:
    """A way to run a case: `what` is set to `value`. Without a `case`, `reason` says why not."""

    what: str
    value: str
    case: AnyCase | None = None
    reason: str = ""


def ways(case: AnyCase, failing_step: int) -> Iterator[Way]:
    """Yield the ways to run a case that failed at a step; -1 if it passed."""
    guard = Guard.LEFT if case.guard is Guard.RIGHT else Guard.RIGHT
    outputs = Outputs.STALE if case.outputs is Outputs.POISONED else Outputs.POISONED
    yield Way("guard", guard.value, case.having(guard=guard))
    yield Way("outputs", outputs.value, case.having(outputs=outputs))
    for way in family_of(case).other_ways(case, failing_step):
        yield _checked(way)


def _checked(way: Way) -> Way:
    """Return the way, with a reason instead of its case if that is impossible."""
    if way.case is None:
        return way
    try:
        way.case.validate()
    except ImpossibleCase as impossible:
        return Way(way.what, way.value, reason=str(impossible))
    return way


def ways_of_steps(case: Case, failing_step: int) -> Iterator[Way]:
    """Yield ways of steps: with another workspace, with or without graphs, one step alone, and with other values."""
    for workspace in Workspace:
        if workspace is not case.workspace:
            yield Way("workspace", workspace.value, replace(case, workspace=workspace))
    replays = any(step.launch is Launch.REPLAY for step in case.steps)
    yield eager(case) if replays else replayed(case)
    index = failing_step if failing_step >= 0 else len(case.steps) - 1
    if any(step.launch is not Launch.CAPTURE for step in case.steps[:index]):
        yield Way("steps", f"step {index} alone", alone(case, index))
    for offset in range(1, _SEEDS + 1):
        yield Way("contents", f"seed {case.seed + offset}", replace(case, seed=case.seed + offset))


def ways_of_calls(case: CallCase) -> Iterator[Way]:
    """Yield ways of calls: with other contents of drawn buffers."""
    for offset in range(1, _SEEDS + 1):
        buffers = tuple(_redrawn(buffer, offset) for buffer in case.buffers)
        if buffers != case.buffers:
            yield Way("contents", f"drawn again, {offset}", replace(case, buffers=buffers))


def eager(case: Case) -> Way:
    """Return the way without graphs: replays are launched eagerly."""
    try:
        other = related(replace(case, relation=Relation.REPLAY_AS_EAGER)).case
    except NotRelated as reason:
        return Way("launch", "eager", reason=str(reason))
    return Way("launch", "eager", other)


def replayed(case: Case) -> Way:
    """Return the way with graphs: each step is captured on padding, and replayed."""
    other = captured(case)
    if other is None:
        mode = next(step.mode for step in case.steps if not step.mode.speculative or not step.tokens)
        return Way("launch", "replay", reason=f"a graph can't hold a step of {mode}")
    return Way("launch", "replay", other)


def alone(case: Case, index: int) -> Case:
    """Return step `index` without earlier steps, except the captures that it needs."""
    step = case.steps[index]
    captures = [other for other in case.steps[:index] if other.launch is Launch.CAPTURE]
    kept = (*captures, step) if step.launch is Launch.REPLAY else (step,)
    slots = sorted(request.slot for request in step.requests)
    numbers = {slot: number for number, slot in enumerate(slots)}
    renumbered = tuple(Request(numbers[each.slot], each.q_len, each.kv_len) for each in step.requests)
    last = replace(step, requests=renumbered)
    return replace(case, steps=(*kept[:-1], last), relation=None)


def cut(case: Case, last: int | None) -> Case:
    """Return the case without the steps after `last`, and without sequences that only those have."""
    steps = case.steps[: (len(case.steps) - 1 if last is None else last) + 1]
    slots = {request.slot for step in steps for request in step.requests}
    # Slots are numbered without gaps: keep all steps if a later one introduces a slot in the middle.
    return replace(case, steps=steps) if slots == set(range(len(slots))) else case


def _redrawn(buffer: Buffer, offset: int) -> Buffer:
    if buffer.drawn is None:
        return buffer
    return replace(buffer, drawn=replace(buffer.drawn, seed=buffer.drawn.seed + offset))


def contrasts(runs: Repeated, variants: Sequence[Variant]) -> Iterator[str]:
    """Yield a sentence for each variation that makes a difference, unless that may be chance."""
    given = runs.outcome
    by_chance = runs.repetition in (Repetition.RACING, Repetition.HISTORY) or not given.failed
    for varied in ("guard", "outputs", "workspace", "launch", "steps", "contents", "backend"):
        if by_chance and varied != "backend":
            continue
        tried = [variant for variant in variants if variant.what == varied and variant.outcome.runs]
        other = [variant for variant in tried if variant.outcome.kind is not given.kind]
        if other:
            yield _saying(varied, given, other, len(tried))


def _saying(varied: str, given: VariantOutcome, other: Sequence[Variant], tried: int) -> str:
    """Interpret `other` outcomes among the `tried` variations of `varied`, in a sentence."""
    value, verb = other[0].value, _verb(other[0])
    match varied:
        case "guard":
            seen = "the stray access is detected on one side only"
            beside = seen if given.kind in FAULTS else "the result depends on memory beside a tensor"
            return f"With guards on the {value}, it {verb}: {beside}."
        case "outputs":
            return f"With {value} outputs, it {verb}: the result depends on the old contents of out."
        case "workspace":
            states = " and a ".join(f"{variant.value} workspace it {_verb(variant)}" for variant in other)
            return f"With a {states}: the result depends on the old contents of the workspace."
        case "launch" if value == "eager":
            return (
                f"Launched eagerly, it {verb}: the failure depends on values that a graph freezes or does not refresh."
            )
        case "launch":
            return f"Captured in a graph and replayed, it {verb}: a replay is planned differently."
        case "steps":
            return f"{value.capitalize()} {verb}: the failure depends on earlier steps."
        case "contents":
            return (
                f"With other contents, it ends differently in {len(other)} of {tried}: the failure depends on values."
            )
        case _:
            return f"The case {verb} on {value}."


def _verb(variant: Variant) -> str:
    outcome = variant.outcome
    return "passes" if outcome.passes else f"ends with {outcome.kind}"
