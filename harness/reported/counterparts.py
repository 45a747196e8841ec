"""Reproduce reported bugs on other kernels than their entries'."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from attnfuzz.harness.backends.registry import builtin, fixed, resolve
from attnfuzz.harness.reduce.geometry import on_pages
from attnfuzz.harness.sandbox.case_runner import RepeatingRunner
from attnfuzz.harness.search.examples import drawn_cases
from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.messages import AnyMessage, Caught, ShrinkBudget, Slice
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.kernels.gpu.variants import name_as_served
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Pace
from attnfuzz.reference.device import Device
from attnfuzz.reference.edits.lengths import with_drafts
from attnfuzz.reference.geometry import Geometry
from attnfuzz.strategies.coverage.features import features_of
from attnfuzz.strategies.lean import Lean

EXAMPLES = 400
"""Most drawn cases to find a bug again whose own case can't be run."""

_SHRINK = ShrinkBudget(runs=200, seconds=10.0)
_TRIES = 8
_ITS_OWN = "its own case"

T = TypeVar("T")


@dataclass(frozen=True)
class Shown:
    """The results of a bug on another backend, `before` its fix and, if it failed there, `after` it.

    `remark` names the kind of case; if none failed, `before` is the verdict on the nearest one. `fixed` is the backend
    without the bug, "" if it was not run.
    """

    remark: str
    before: Verdict | None
    after: Verdict | None
    fixed: str = ""


def shown_on(
    backend: str,
    case: AnyCase,
    kinds: Collection[Kind],
    runner: RepeatingRunner,
    *,
    after: str = "",
    examples: int = EXAMPLES,
) -> Shown:
    """Make `backend` fail in one of these ways: on `case`, on `case` in its geometries, or on a drawn one.

    A failing case is then run on `after`, or if that is "", on the same backend without its bug. Drawn cases are biased
    towards the features of `case`, and are always the same. A case that is no attention is run itself, alone.
    """
    if not isinstance(case, Case):
        verdict = runner.verdict(case.having(backend=backend))
        if _fails(verdict, kinds):
            return _shown(_ITS_OWN, verdict, case.having(backend=backend), runner, after)
        return Shown("its own case does not fail as reported", verdict, None)
    nearest: Verdict | None = None
    for moved in cases_like(case, backend)[:_TRIES]:
        verdict = runner.verdict(moved)
        nearest = nearest or verdict
        if _fails(verdict, kinds):
            own = moved == replace(case, backend=backend)
            remark = _ITS_OWN if own else "its case, with a geometry that the backend supports"
            return _shown(remark, verdict, moved, runner, after)
    found = _drawn(backend, case, kinds, runner, examples)
    if found is not None:
        return _shown("a case found by a search", found.verdict, found.case, runner, after)
    return Shown(f"neither its case nor any of {examples} drawn cases fails as reported", nearest, None)


def _shown(remark: str, before: Verdict, case: AnyCase, runner: RepeatingRunner, after: str) -> Shown:
    after = after or without_bug(case)
    return Shown(remark, before, runner.verdict(case.having(backend=after)), after)


def without_bug(case: AnyCase) -> str:
    """Return the backend of `case` without its bug.

    The one restricted to served features, if there is one: beyond them, known failures of its kernels may hide the fix.
    """
    plain = fixed(case.backend)
    served = builtin().get(name_as_served(plain))
    if served is None or served.capability.why_not(case.having(backend=served.name)) is not None:
        return plain
    return served.name


def _fails(verdict: Verdict, kinds: Collection[Kind]) -> bool:
    return any(failure.kind in kinds for failure in verdict.failures)


def _drawn(backend: str, near: Case, kinds: Collection[Kind], runner: RepeatingRunner, examples: int) -> Caught | None:
    """Search drawn cases for one that fails as reported, and shrink it."""
    lean = Lean(tuple(sorted(features_of(near))))
    can, strategy = resolve(backend).capability, drawn_cases(backend, lean=lean)
    known: list[Fingerprint] = []
    left, index = examples, 0
    while left > 0:
        messages: list[AnyMessage] = []
        task = Slice(
            backend=backend,
            index=index,
            seed=index,
            examples=left,
            known=tuple(known),
            shrink=_SHRINK,
            first_only=True,
            lean=lean,
        )
        done = Hunt(task, runner, messages.append, capability=can).run(strategy)
        caught = [message for message in messages if isinstance(message, Caught)]
        for message in caught:
            if _fails(message.verdict, kinds):
                return message
        if not done.stopped_early:
            return None
        known += [message.fingerprint for message in caught]
        left, index = left - done.tally.searched, index + 1
    return None


def cases_like(case: Case, backend: str) -> list[Case]:
    """List `case` on `backend`, unchanged or moved into compiled geometries, the nearest first."""
    can = resolve(backend).capability
    case = replace(case, backend=backend, pace=Pace.PROMPT if can.device is Device.CPU else case.pace)
    viewed = with_views_of(can, case)
    moved = [case, viewed]
    for bucket in sorted(can.buckets, key=lambda bucket: len(bucket.differences(case.geometry))):
        there = _moved(viewed, bucket)
        moved.append(there)
        for stride in bucket.strides:
            moved += with_drafts(there, stride)
    return [each for each in dict.fromkeys(moved) if can.can_run(each)]


def with_views_of(can: Capability, case: Case) -> Case:
    """Give `case` tensor layouts that a backend takes: its own, or else the backend's first."""
    views = replace(
        case.views,
        query=_nearest(case.views.query, can.query_views),
        kv=_nearest(case.views.kv, can.kv_views),
        table_gap=case.views.table_gap if can.table_gaps else 0,
        value_strides=case.views.value_strides and can.value_strides,
    )
    return replace(case, views=views)


def _moved(case: Case, bucket: Bucket) -> Case:
    """Move `case` to a geometry of `bucket`: its own value of each part, or else the bucket's first."""
    now, simplest = case.geometry, bucket.simplest
    q_heads, kv_heads = _nearest((now.q_heads, now.kv_heads), bucket.heads)
    page_size = _nearest(now.page_size, bucket.page_sizes)
    geometry: Geometry = replace(
        simplest,
        q_heads=q_heads,
        kv_heads=kv_heads,
        page_size=page_size,
        kv_layout=_nearest(now.kv_layout, bucket.layouts),
        window_left=_nearest(now.window_left, bucket.windows),
        sinks=_nearest(now.sinks, bucket.sinks),
        soft_cap=_nearest(now.soft_cap, bucket.soft_caps),
    )
    return replace(on_pages(case, page_size), geometry=geometry)


def _nearest(value: T, options: tuple[T, ...]) -> T:
    return value if value in options else options[0]
