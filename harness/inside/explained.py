"""Explaining a failure: the case is run again with other values, scales and lengths, to test each claim.

A worker does this once per reported failure. No tensor leaves it: claims are functions of a row.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from attnfuzz.harness.family import family_of
from attnfuzz.harness.inside.execute import Execution, backend_of
from attnfuzz.harness.inside.launcher import Launched
from attnfuzz.harness.judge.explain import (
    POSITIONS,
    Aspect,
    Explanation,
    Inquiry,
    PagedCall,
    RowOrders,
    Stake,
    paged_call,
    sampled_rows,
    worst_row,
)
from attnfuzz.harness.judge.judge import Judgement
from attnfuzz.harness.judge.wrong_rows import wrong_rows
from attnfuzz.harness.verdict.failures import REACHED_BY, Kind, Observation, Verdict, WrongRows
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.harness.workers.task import Task
from attnfuzz.reference.case import Case
from attnfuzz.reference.geometry import KvLayout

_MOST_SECONDS = 10.0
"""Seconds after which no further run begins."""

Write = Callable[[bytes], None]


@dataclass
class _Failure:
    """A failed place of a step, its row, and the inquiry into it."""

    step: int
    place: str
    at: tuple[int, int]
    inquiry: Inquiry

    @property
    def aspect(self) -> Aspect:
        return Aspect.LSE if self.place == "lse" else Aspect.OUT


def _opened(step: int, judgement: Judgement, call: PagedCall | None) -> Iterator[_Failure]:
    """Yield an inquiry into each failing place of a step."""
    for place, worst in judgement.worst.items():
        evidence = judgement.evidence
        if worst is None or evidence is None:
            continue
        aspect = Aspect.LSE if place == "lse" else Aspect.OUT
        rows = sampled_rows(evidence, worst, aspect, call, failed=True)
        if any((each.row.token, each.row.head) == worst for each in rows):
            out_failed = "out" in judgement.worst
            inquiry = Inquiry(worst_row(evidence, worst, call), rows, aspect, out_failed=out_failed)
            yield _Failure(step, place, worst, inquiry)


def _numbers(step: int, judgement: Judgement) -> Iterator[tuple[tuple[int, str], WrongRows]]:
    """Yield the rows of each failing place of a step, by step and place."""
    for place, worst in judgement.worst.items():
        if worst is not None and judgement.evidence is not None:
            yield (step, place), wrong_rows(judgement.evidence, place, worst)


def _with_numbers(observation: Observation, numbers: Mapping[tuple[int, str], WrongRows]) -> Observation:
    """Add the rows of a failure that a tier with bounds found."""
    if observation.tier in ("", Tier.T0, Tier.T6) or observation.related:
        return observation
    return replace(observation, rows=numbers.get((observation.step, observation.place)))


def _inquire(
    stake: Stake,
    failures: Sequence[_Failure],
    orders: Mapping[int, RowOrders],
    layout: KvLayout,
    step: int,
    judgement: Judgement,
    launches: Sequence[Launched],
) -> None:
    """Pass the rows of a further run to the inquiries, and to the orders of all rows."""
    evidence, call = judgement.evidence, _call(launches, layout)
    if evidence is not None and step in orders:
        orders[step].test(evidence)
    for failure in failures:
        if evidence is None or (failure.aspect is Aspect.LSE and evidence.lse is None):
            continue
        elsewhere = failure.step != step
        at = judgement.worst.get(failure.place) if elsewhere else failure.at
        if at is not None and at[0] < len(evidence.sees):
            rows = sampled_rows(evidence, at, failure.aspect, call, failed=False)
            failure.inquiry.test(stake, rows, elsewhere=elsewhere)


def _call(launches: Sequence[Launched], layout: KvLayout) -> PagedCall | None:
    """Return the one call that produced an output, or None if there were several."""
    return paged_call(launches[0].op.name, launches[0].arguments, layout) if len(launches) == 1 else None


def explained(task: Task, write: Write) -> Verdict:
    """Return the verdict on a task, with explanations of failures that further runs confirm."""
    began = time.monotonic()
    found: list[_Failure] = []
    orders: dict[int, RowOrders] = {}
    numbers: dict[tuple[int, str], WrongRows] = {}
    layout = task.case.geometry.kv_layout if isinstance(task.case, Case) else KvLayout.NHD

    def look(step: int, judgement: Judgement, launches: Sequence[Launched]) -> None:
        found.extend(_opened(step, judgement, _call(launches, layout)))
        if judgement.observations and judgement.evidence is not None:
            orders[step] = RowOrders(judgement.evidence)
        numbers.update(_numbers(step, judgement))

    verdict = Execution(task, write, look=look).run()
    for stake, case in family_of(task.case).further(task.case, backend_of(task.backend).capability):
        open_ones = [failure for failure in found if failure.inquiry.open]
        of_rows = orders if stake in POSITIONS else {}
        if not (open_ones or any(each.words for each in of_rows.values())) or time.monotonic() - began > _MOST_SECONDS:
            break
        # A worker that is silent for too long counts as hung.
        write(b"")
        again = partial(_inquire, stake, open_ones, of_rows, layout)
        Execution(replace(task, case=case, trace=None), write, look=again).run()
    described = (_with_words(each, _explanation(each, found, orders)) for each in verdict.observations)
    return replace(verdict, observations=tuple(_with_numbers(each, numbers) for each in described))


def _explanation(
    observation: Observation, failures: Sequence[_Failure], orders: Mapping[int, RowOrders]
) -> Explanation | None:
    """Return the explanation of a failed place: an order of all rows, or a claim about its worst row."""
    order = orders.get(observation.step)
    of_rows = observation.place == "out" or observation.kind is Kind.EMPTY_ROW
    if order is not None and of_rows and (found := order.conclusion()) is not None:
        return found
    if observation.tier in ("", Tier.T0) or observation.row is None:
        return None
    here = (each for each in failures if (each.step, each.place) == (observation.step, observation.place))
    return next(filter(None, (each.inquiry.conclusion() for each in here)), None)


def _with_words(observation: Observation, found: Explanation | None) -> Observation:
    """Add an explanation to an observation, before the line on how a server reaches it."""
    if found is None:
        return observation
    message, reached, way = observation.message.partition(f"\n{REACHED_BY}")
    text = f"{message}\n{found.words}{reached}{way}"
    return replace(observation, message=text, mistakes=found.mistakes, keys=found.keys)
