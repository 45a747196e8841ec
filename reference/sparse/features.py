"""The table of features of cases of sparse attention."""

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from attnfuzz.reference.case import Guard, Outputs, ValueFamily
from attnfuzz.reference.features.row import Axis, but, flag, of_case, of_steps, removable, single, size
from attnfuzz.reference.features.table import FeatureTable
from attnfuzz.reference.sparse.case import (
    KvFormat,
    ListOrder,
    Scores,
    SparseCase,
    SparseMode,
    SparseOp,
    SparseStep,
    Tail,
)


def _with(case: SparseCase, **changes: object) -> SparseCase:
    """Return the case with other values in its geometry."""
    return case.having(geometry=replace(case.geometry, **changes))


def _steps(case: SparseCase, **changes: object) -> list[SparseCase]:
    return [case.having(steps=tuple(replace(step, **changes) for step in case.steps))]


def _eager(case: SparseCase) -> list[SparseCase]:
    return _steps(case, replayed=False)


def _unpadded(case: SparseCase) -> list[SparseCase]:
    steps = tuple(replace(each, padding=0) for each in case.steps if each.requests)
    return [case.having(steps=steps)] if steps else []


def _of_one_query(case: SparseCase) -> Iterator[SparseCase]:
    """Yield the case with one query of each request in the modes of its steps, and with decodes."""
    for mode in (None, SparseMode.DECODE):
        yield case.having(steps=tuple(_with_one_query(step, mode or step.mode) for step in case.steps))


def _with_one_query(step: SparseStep, mode: SparseMode) -> SparseStep:
    if not step.requests:
        return step
    whole = mode is SparseMode.PREFILL
    requests = tuple(replace(each, q_len=1, kv_len=1 if whole else each.kv_len) for each in step.requests)
    return replace(step, mode=mode, requests=requests)


def _of_chain(case: SparseCase) -> Iterator[SparseCase]:
    for op in case.ops:
        yield case.having(ops=(op,))


def _longest(step: SparseStep) -> int:
    return max((request.kv_len for request in step.requests), default=0)


def _keys(moment: "SparseMoment") -> str:
    longest = _longest(moment.step)
    return "none" if not longest else "up to k" if longest <= moment.case.geometry.top_k else "above k"


def _lengths(moment: "SparseMoment") -> str:
    return "up to 2048" if _longest(moment.step) <= _MANY else "above 2048"


_MANY = 2048


def _shorter(case: SparseCase) -> Iterator[SparseCase]:
    steps = tuple(
        replace(
            step,
            requests=tuple(
                replace(each, kv_len=min(each.kv_len, _MANY)) if each.q_len <= _MANY else each for each in step.requests
            ),
        )
        for step in case.steps
    )
    yield case.having(steps=steps)


@dataclass(frozen=True, slots=True)
class SparseMoment:
    """A step in its case."""

    case: SparseCase
    step: SparseStep


def _moments(case: SparseCase) -> Iterator[SparseMoment]:
    return (SparseMoment(case, step) for step in case.steps)


LISTS = ("up to 8", "up to 64", "longer")
PAGES = ("1", "power of two", "another")


def top_k_class(top_k: int) -> str:
    """Return the class of the length of lists."""
    return next((f"up to {most}" for most in (8, 64) if top_k <= most), "longer")


def page_class(size: int) -> str:
    """Return the class of a page size."""
    return "1" if size == 1 else "power of two" if size & (size - 1) == 0 else "another"


TABLE = FeatureTable(
    of_case(
        Axis("op", tuple(SparseOp), lambda case: case.ops),
        "ops",
        removable("chain of ops", but(*SparseOp), _of_chain, clue=False),
    ),
    of_steps(single("mode", tuple(SparseMode), lambda moment: moment.step.mode.value), "steps"),
    of_steps(
        single("queries", ("one", "several"), lambda moment: "one" if _single(moment.step) else "several"),
        "steps",
        removable("several queries", but("one"), _of_one_query),
    ),
    of_steps(
        flag("replayed", lambda moment: moment.step.replayed),
        "steps",
        removable("replayed steps", but("none"), _eager),
    ),
    of_steps(
        flag("padding", lambda moment: moment.step.padding),
        "steps",
        removable("padding", but("none"), _unpadded),
    ),
    of_steps(single("keys", ("none", "up to k", "above k"), _keys), "steps geometry.top_k"),
    of_case(single("list", LISTS, lambda case: top_k_class(case.geometry.top_k)), "geometry.top_k"),
    of_case(single("page", PAGES, lambda case: page_class(case.geometry.page_size)), "geometry.page_size"),
    of_steps(
        single("length", ("up to 2048", "above 2048"), _lengths),
        "steps",
        size("many keys", but("up to 2048"), _shorter),
    ),
    of_case(
        single("format", tuple(KvFormat), lambda case: case.geometry.format),
        "geometry.format",
        removable(
            "latents",
            but(KvFormat.HEADS),
            lambda case: [_with(case, format=KvFormat.HEADS, dim=32, value_dim=32)],
        ),
    ),
    of_case(
        flag("sinks", lambda case: case.geometry.sinks),
        "geometry.sinks",
        removable("sinks", but("none"), lambda case: [_with(case, sinks=False)]),
    ),
    of_case(
        flag("second list", lambda case: case.geometry.second),
        "geometry.second",
        removable("second list", but("none"), lambda case: [_with(case, second=0)]),
    ),
    of_case(
        flag("counts", lambda case: case.geometry.counts),
        "geometry.counts",
        removable("counts", but("none"), lambda case: [_with(case, counts=False).having(tail=Tail.MINUS_ONE)]),
    ),
    of_case(
        flag("packed keys", lambda case: case.geometry.ragged),
        "geometry.ragged",
        removable("packed keys", but("none"), lambda case: [_with(case, ragged=False)]),
    ),
    of_case(
        flag("powers of two", lambda case: case.geometry.powers),
        "geometry.powers",
        removable("powers of two", but("none"), lambda case: [_with(case, powers=False)]),
    ),
    of_case(
        single("scores", tuple(Scores), lambda case: case.scores),
        "scores",
        removable("unusual scores", but(Scores.NORMAL), lambda case: [case.having(scores=Scores.NORMAL)], clue=False),
    ),
    of_case(
        single("order", tuple(ListOrder), lambda case: case.order),
        "order",
        removable("order of lists", but(ListOrder.RECENT), lambda case: [case.having(order=ListOrder.RECENT)]),
    ),
    of_case(
        single("tail", tuple(Tail), lambda case: case.tail),
        "tail",
        removable("tail of lists", but(Tail.MINUS_ONE), lambda case: [case.having(tail=Tail.MINUS_ONE)]),
    ),
    of_case(
        single("values", tuple(ValueFamily), lambda case: case.values),
        "values",
        removable(
            "unusual values",
            but(ValueFamily.NORMAL),
            lambda case: [case.having(values=ValueFamily.NORMAL)],
            clue=False,
        ),
    ),
    of_case(
        flag("slack", lambda case: case.slack),
        "slack",
        removable("slack columns", but("none"), lambda case: [case.having(slack=0)]),
    ),
    of_case(
        flag("gap", lambda case: case.gap),
        "gap",
        removable("gaps between rows", but("none"), lambda case: [case.having(gap=0)]),
    ),
    of_case(
        flag("backwards", lambda case: case.backwards),
        "backwards",
        removable("descending pages", but("none"), lambda case: [case.having(backwards=False)], clue=False),
    ),
    of_case(single("guard", tuple(Guard), lambda case: case.guard), "guard"),
    of_case(single("outputs", tuple(Outputs), lambda case: case.outputs), "outputs"),
    moments=_moments,
)


def _single(step: SparseStep) -> bool:
    return all(request.q_len == 1 for request in step.requests)
