"""Further runs of a failing case of attention, whose rows test claims about the failure."""

from collections.abc import Iterator

from msgspec.structs import replace

from attnfuzz.harness.judge.explain.claim import Stake
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Launch, Mode, Step, ValueFamily

_LONGER = ((37, 5, 1), (10, 2))
"""Numbers of keys added to requests in two runs: the first number that gives a valid case is used."""

_SEEDS = 3
"""Number of runs with other values."""

_QUERIES = 2
"""Number of queries added to requests."""

_WIDER = 3
"""Number of keys added to a window."""

_SCALE = 1.375
"""Factor of scales, exact in 16 bits."""


def further(case: Case, capability: Capability) -> Iterator[tuple[Stake, Case]]:
    """Yield valid cases that differ from `case` in one respect, each with the claims that it tests."""
    case = replace(case, relation=None)
    changed = [(Stake.VALUES, replace(case, seed=case.seed + more)) for more in range(1, _SEEDS + 1)]
    if case.values is not ValueFamily.NORMAL:
        changed.append((Stake.FAMILY, replace(case, values=ValueFamily.NORMAL)))
    candidates = [[each] for each in changed]
    candidates.append([(Stake.QUERIES, _more_queries(case))])
    candidates += [[(Stake.LENGTHS, _longer(case, more)) for more in mores] for mores in _LONGER]
    candidates.append([(Stake.SCALES, _rescaled(case, all_of_them=all_)) for all_ in (True, False)])
    for alternatives in candidates:
        possible = (each for each in alternatives if capability.can_run(each[1]))
        if (one := next(possible, None)) is not None and one[1] != case:
            yield one


def _longer(case: Case, more: int) -> Case:
    geometry = case.geometry
    if geometry.window_left >= 0:
        geometry = replace(geometry, window_left=geometry.window_left + _WIDER)
    steps = tuple(
        replace(
            step,
            requests=tuple(
                replace(request, kv_len=request.kv_len + more) if request.kv_len else request
                for request in step.requests
            ),
        )
        for step in case.steps
    )
    return replace(case, geometry=geometry, steps=steps)


def _more_queries(case: Case) -> Case:
    """Add queries, and as many keys, to each request of eager steps that may have more than one query."""
    return replace(case, steps=tuple(map(_with_queries, case.steps)))


def _with_queries(step: Step) -> Step:
    if step.mode is Mode.DECODE or step.launch is not Launch.EAGER or not step.requests:
        return step
    requests = tuple(
        replace(each, q_len=each.q_len + _QUERIES, kv_len=each.kv_len + _QUERIES) if each.q_len else each
        for each in step.requests
    )
    stride = step.tokens_per_request
    if stride:
        rows = step.padded_tokens // stride * (stride + _QUERIES)
        return replace(step, requests=requests, tokens_per_request=stride + _QUERIES, padded_tokens=rows)
    return replace(step, requests=requests, padded_tokens=step.padded_tokens + _QUERIES * len(requests))


def _rescaled(case: Case, *, all_of_them: bool) -> Case:
    scales = case.scales
    changed = replace(scales, softmax=scales.softmax * _SCALE)
    if all_of_them:
        changed = replace(changed, k=scales.k * _SCALE, v=scales.v * _SCALE)
    return replace(case, scales=changed)
