"""Smaller and plainer cases of sparse attention."""

from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from attnfuzz.reference.case import Guard, Outputs, ValueFamily
from attnfuzz.reference.case_file import possible
from attnfuzz.reference.sparse.case import (
    ListOrder,
    Scores,
    SparseCase,
    SparseRequest,
    SparseStep,
    Tail,
)


def one_op(case: SparseCase) -> Iterator[SparseCase]:
    """Yield the case with one of its ops alone."""
    if len(case.ops) > 1:
        yield from (replace(case, ops=(op,)) for op in reversed(case.ops))


def fewer_steps(case: SparseCase) -> Iterator[SparseCase]:
    """Yield the case without all steps but one, then without each."""
    if len(case.steps) > 1:
        yield from (replace(case, steps=(step,)) for step in reversed(case.steps))
        for at in range(len(case.steps)):
            yield replace(case, steps=case.steps[:at] + case.steps[at + 1 :])


def fewer_requests(case: SparseCase) -> Iterator[SparseCase]:
    """Yield the case with one request of a step, then without each, and with less padding."""
    for step in case.steps:
        requests = step.requests
        if len(requests) > 1:
            yield from (_changed(case, step, requests=(each,)) for each in requests)
            for at in range(len(requests)):
                yield _changed(case, step, requests=requests[:at] + requests[at + 1 :])
        yield from (_changed(case, step, padding=padding) for padding in range(step.padding))


def shorter(case: SparseCase) -> Iterator[SparseCase]:
    """Yield the case with fewer queries or keys of a request."""
    for step in case.steps:
        if step.mode.batched:
            for queries in _below(step.queries, 1):
                requests = tuple(replace(each, q_len=queries) for each in step.requests)
                yield _changed(case, step, requests=requests)
        for at, each in enumerate(step.requests):
            own = [SparseRequest(each.q_len, keys) for keys in _below(each.kv_len, each.q_len)]
            if not step.mode.batched:
                own = [SparseRequest(q_len, each.kv_len) for q_len in _below(each.q_len, 1)] + own
                own += [SparseRequest(both, both) for both in _below(each.q_len, 1) if each.q_len == each.kv_len]
            for request in own:
                yield _changed(case, step, requests=(*step.requests[:at], request, *step.requests[at + 1 :]))


def _changed(case: SparseCase, step: SparseStep, **changes: object) -> SparseCase:
    return replace(case, steps=tuple(replace(each, **changes) if each is step else each for each in case.steps))


def _below(number: int, least: int) -> Iterator[int]:
    """Yield smaller numbers down to the least: it, halves, then one less."""
    tried = {least, *(number - (number - least) // part for part in (2, 4, 8)), number - 1}
    yield from sorted(each for each in tried if least <= each < number)


def smaller_geometry(case: SparseCase) -> Iterator[SparseCase]:
    """Yield the case with smaller numbers in its geometry."""
    geometry = case.geometry
    for changes in (
        {"query_heads": 1, "kv_heads": 1},
        {"query_heads": geometry.kv_heads},
        *({"index_heads": heads} for heads in _below(geometry.index_heads, 1)),
        *({"index_dim": dim} for dim in (8, 32, geometry.index_dim // 8 * 4) if 4 <= dim < geometry.index_dim),
        *({"top_k": top_k} for top_k in _below(geometry.top_k, 1)),
        *({"second": second} for second in _below(geometry.second, 0)),
        *({"page_size": size} for size in (1, 4, 16, 64) if size < geometry.page_size),
        {"dim": 8, "value_dim": 8},
        {"dim": geometry.value_dim},
    ):
        smaller = replace(geometry, **changes)
        if smaller != geometry:
            yield replace(case, geometry=smaller)


def default_fields(case: SparseCase) -> Iterator[SparseCase]:
    """Yield the case with the default of one of its fields, or of its geometry's flags."""
    plain = {
        "values": ValueFamily.NORMAL,
        "scores": Scores.NORMAL,
        "order": ListOrder.RECENT,
        "tail": Tail.MINUS_ONE,
        "slack": 0,
        "gap": 0,
        "backwards": False,
        "guard": Guard.RIGHT,
        "outputs": Outputs.POISONED,
    }
    for field, value in plain.items():
        if getattr(case, field) != value:
            yield replace(case, **{field: value})
    for flag in ("sinks", "counts", "ragged", "powers"):
        if getattr(case.geometry, flag):
            yield replace(case, geometry=replace(case.geometry, **{flag: False}))
    for step in case.steps:
        if step.replayed:
            yield _changed(case, step, replayed=False)


def plainer(case: SparseCase) -> Iterator[SparseCase]:
    """Yield the case with the default contents and memory, unless it has them."""
    plain = SparseCase(
        backend=case.backend, ops=case.ops, steps=case.steps, geometry=case.geometry, seed=case.seed, past=case.past
    )
    if plain != case and possible(plain):
        yield plain


EDITS: Final[tuple[Callable[[SparseCase], Iterator[SparseCase]], ...]] = (
    one_op,
    fewer_steps,
    fewer_requests,
    default_fields,
    shorter,
    smaller_geometry,
)
