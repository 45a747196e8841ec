"""Features of traces, and which of them a failure needs: found by running its trace without each.

As `attnfuzz.harness.reduce.ablation` does for cases. A feature without which a trace still fails stays out, so
that few features are left that the failure does not need.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from attnfuzz.harness.serve.surface import Surface
from attnfuzz.harness.serve.trace import (
    LEAST_SHARED,
    Burst,
    Prompt,
    RequestTrace,
    ServedRequest,
    with_requests,
)

APART = 1 << 10
"""The first of the streams that no drawn prompt begins with."""

ARRIVALS = frozenset({"at once", "one after another"})
"""Without the one, a trace of several requests has the other."""


class TraceFeature(NamedTuple):
    """A feature of traces called `name`, of which `removal` takes one out in one way or more."""

    name: str
    present: Callable[[RequestTrace, Surface], bool]
    removal: Callable[[RequestTrace, Surface], Iterator[RequestTrace]]


class Ablated(NamedTuple):
    """A trace that fails, the features that it `needs` to, and those that the time did not suffice to try without."""

    trace: RequestTrace
    needs: tuple[str, ...]
    untried: tuple[str, ...] = ()


class Rerunning(NamedTuple):
    """A trace that was run again: it failed alike in `times` of `runs`."""

    times: int
    runs: int


Repeat = Callable[[RequestTrace], Rerunning]


def features(trace: RequestTrace, surface: Surface) -> tuple[str, ...]:
    """Return the names of the features that a trace has on a server with these sizes."""
    return tuple(each.name for each in FEATURES if each.present(trace, surface))


def without(trace: RequestTrace, names: Sequence[str], surface: Surface) -> list[RequestTrace]:
    """Return traces without these features: of several, each removed in the first of its ways."""
    variants = [trace]
    for feature in (each for each in FEATURES if each.name in names):
        variants = [each for variant in variants for each in feature.removal(variant, surface)]
        variants = variants if len(names) == 1 else variants[:1]
    possible = (each for each in dict.fromkeys(variants) if each.bursts)
    return [each for each in possible if each != trace and not set(names) & set(features(each, surface))]


def ablated(
    trace: RequestTrace,
    repeat: Repeat,
    surface: Surface,
    *,
    over: Callable[[], bool],
    kept: Collection[str] = (),
    steady: bool = True,
) -> Ablated:
    """Remove the features of a failing trace that its failure does not need, but those `kept`.

    The others are removed together first, then by halves. A `steady` failure goes on with traces that always fail.
    """
    ablation = _Ablation(trace, repeat, surface, over, steady=steady)
    names = [name for name in features(trace, surface) if name not in kept]
    ablation.drop([name for name in names if name not in _OF_ALL])
    for name in reversed(_OF_ALL):
        ablation.drop([name] if name in names else [])
    return Ablated(ablation.trace, tuple(sorted(ablation.needs, key=_NAMES.index)), tuple(ablation.untried))


class _Ablation:
    def __init__(
        self, trace: RequestTrace, repeat: Repeat, surface: Surface, over: Callable[[], bool], *, steady: bool
    ) -> None:
        self.trace = trace
        self.needs: list[str] = []
        self.untried: list[str] = []
        self._repeat = repeat
        self._surface = surface
        self._over = over
        self._steady = steady

    def drop(self, names: Sequence[str]) -> None:
        """Go on without these features; note those that can't be missed."""
        present = features(self.trace, self._surface)
        left = [name for name in names if name in present]
        if not left:
            return
        if self._over():
            self.untried += left
            return
        if self._fails_without(left):
            return
        if len(left) == 1:
            self.needs += left
            return
        middle = len(left) // 2
        self.drop(left[:middle])
        self.drop(left[middle:])

    def _fails_without(self, names: Sequence[str]) -> bool:
        variants = without(self.trace, names, self._surface)
        if set(names) <= _SIZES:
            variants = [each for each in variants if self._loses_nothing_else(each)]
            if not variants:
                # Not needed, as far as is known.
                return True
        for variant in variants:
            times, runs = self._repeat(variant)
            if not times or (ARRIVALS.intersection(names) and not self._passes_without_needs(variant)):
                continue
            if times == runs or not self._steady:
                self.trace = variant
                return True
            if len(names) == 1:
                return True
        return False

    def _loses_nothing_else(self, variant: RequestTrace) -> bool:
        """Return whether a trace of shorter prompts, or of fewer requests at once, still has all other features."""
        lost = set(features(self.trace, self._surface)) - set(features(variant, self._surface))
        return lost <= _SIZES

    def _passes_without_needs(self, variant: RequestTrace) -> bool:
        """Return whether a trace that arrives in another way fails by the same bug: it may show one that this does not.

        Requests at once may be too many, and those in turn find each other's prefixes in the cache.
        """
        variants = (each for name in self.needs for each in without(variant, [name], self._surface))
        return not any(self._repeat(each).times for each in variants)


def _changed(change: Callable[[ServedRequest], ServedRequest]) -> Callable[..., Iterator[RequestTrace]]:
    """Return the removal that changes each request."""

    def removal(trace: RequestTrace, _: Surface) -> Iterator[RequestTrace]:
        yield with_requests(trace, [change(request) for request in trace.requests])

    return removal


def _some(has: Callable[[ServedRequest], object]) -> Callable[[RequestTrace, Surface], bool]:
    return lambda trace, _: any(map(has, trace.requests))


def _shares_a_prefix(trace: RequestTrace, _: Surface) -> bool:
    heads = [each.prompt.tokens[:LEAST_SHARED] for each in trace.requests if each.prompt.length >= LEAST_SHARED]
    return len(set(heads)) < len(heads)


def _apart(trace: RequestTrace, _: Surface) -> Iterator[RequestTrace]:
    """Yield prompts of the same lengths and periods, each from streams of its own."""
    yield with_requests(
        trace,
        [
            replace(each, prompt=replace(each.prompt, stream=APART + 2 * place, own_stream=APART + 2 * place + 1))
            for place, each in enumerate(trace.requests)
        ],
    )


def _in_turn(trace: RequestTrace, _: Surface) -> Iterator[RequestTrace]:
    yield RequestTrace(bursts=tuple(Burst((each,), after_all=bool(i)) for i, each in enumerate(trace.requests)))


def _together(trace: RequestTrace, _: Surface) -> Iterator[RequestTrace]:
    yield RequestTrace(bursts=tuple(replace(burst, after_all=False) for burst in trace.bursts))


def _without_pauses(trace: RequestTrace, _: Surface) -> Iterator[RequestTrace]:
    yield RequestTrace(bursts=tuple(replace(burst, pause=0.0) for burst in trace.bursts))


def _never_aborted(trace: RequestTrace, _: Surface) -> Iterator[RequestTrace]:
    """Yield the trace with aborted requests answered, and without them."""
    yield with_requests(trace, [replace(each, abort=None) for each in trace.requests])
    bursts = (replace(burst, requests=tuple(r for r in burst.requests if r.abort is None)) for burst in trace.bursts)
    yield RequestTrace(bursts=tuple(burst for burst in bursts if burst.requests))


def _is_chunked(trace: RequestTrace, surface: Surface) -> bool:
    """Return whether prompts under way together exceed the tokens of a step, so that some are cut into chunks."""
    return bool(surface.chunk) and any(sum(map(_length, group)) > surface.chunk for group in _groups(trace))


def _length(request: ServedRequest) -> int:
    return request.prompt.length


def _within_a_chunk(trace: RequestTrace, surface: Surface) -> Iterator[RequestTrace]:
    """Yield the trace with shorter prompts, and with fewer of its requests at once."""
    share = surface.chunk / max(sum(map(_length, group)) for group in _groups(trace))
    yield _with_lengths(trace, lambda length: max(1, int(length * min(share, 1.0))))
    clipped = _with_lengths(trace, lambda length: min(length, surface.chunk))
    yield _in_waves(clipped, _length, surface.chunk)


def _in_waves(trace: RequestTrace, size: Callable[[ServedRequest], int], most: int) -> RequestTrace:
    """Split the trace so that no more of its requests are sent at once than fit."""
    bursts: list[Burst] = []
    for each in trace.requests:
        if bursts and sum(map(size, bursts[-1].requests)) + size(each) <= most:
            bursts[-1] = replace(bursts[-1], requests=(*bursts[-1].requests, each))
        else:
            bursts.append(Burst((each,), after_all=bool(bursts)))
    return RequestTrace(bursts=tuple(bursts))


def _with_lengths(trace: RequestTrace, length: Callable[[int], int]) -> RequestTrace:
    return with_requests(
        trace, [replace(each, prompt=_cut(each.prompt, length(each.prompt.length))) for each in trace.requests]
    )


def _cut(prompt: Prompt, length: int) -> Prompt:
    own = min(prompt.own, length)
    return replace(prompt, shared=length - own if own < length else 0, own=own)


def _groups(trace: RequestTrace) -> Iterator[list[ServedRequest]]:
    """Yield the requests that may be under way together."""
    group: list[ServedRequest] = []
    for burst in trace.bursts:
        if burst.after_all and group:
            yield group
            group = []
        group = [*group, *burst.requests]
    if group:
        yield group


def _tokens(request: ServedRequest) -> int:
    return request.prompt.length + request.n * request.tokens


def _overcommits_pool(trace: RequestTrace, surface: Surface) -> bool:
    """Return whether requests under way together may need more than the pool, so that some are preempted."""
    return bool(surface.pool) and any(sum(map(_tokens, group)) > surface.pool for group in _groups(trace))


def _within_the_pool(trace: RequestTrace, surface: Surface) -> Iterator[RequestTrace]:
    """Yield the trace with shorter prompts, and with fewer of its requests at once."""
    most = max(sum(map(_tokens, group)) for group in _groups(trace))
    answers = max(sum(each.n * each.tokens for each in group) for group in _groups(trace))
    share = (surface.pool - answers) / max(most - answers, 1)
    if share > 0:
        yield _with_lengths(trace, lambda length: max(1, int(length * share)))
    yield _in_waves(trace, _tokens, surface.pool)


def _leaves_ranks_idle(trace: RequestTrace, surface: Surface) -> bool:
    """Return whether requests under way together were all sent to one rank of several."""
    ranks = (({each.rank for each in group}, len(group)) for group in _groups(trace))
    return surface.ranks > 1 and any(len(of) == 1 and None not in of and number > 1 for of, number in ranks)


def _on_all_ranks(trace: RequestTrace, surface: Surface) -> Iterator[RequestTrace]:
    requests = [replace(each, rank=place % surface.ranks) for place, each in enumerate(trace.requests)]
    yield with_requests(trace, requests)


FEATURES = (
    TraceFeature("at once", lambda trace, _: trace.most_at_once > 1, _in_turn),
    TraceFeature("one after another", lambda trace, _: any(each.after_all for each in trace.bursts[1:]), _together),
    TraceFeature("shared prefix", _shares_a_prefix, _apart),
    TraceFeature("chunked prompt", _is_chunked, _within_a_chunk),
    TraceFeature("more than the pool", _overcommits_pool, _within_the_pool),
    TraceFeature("abort", _some(lambda each: each.abort), _never_aborted),
    TraceFeature("n > 1", _some(lambda each: each.n > 1), _changed(lambda each: replace(each, n=1))),
    TraceFeature(
        "priorities",
        lambda trace, _: len({each.priority for each in trace.requests}) > 1,
        _changed(lambda each: replace(each, priority=0)),
    ),
    TraceFeature(
        "repeating prompt",
        _some(lambda each: each.prompt.period),
        _changed(lambda each: replace(each, prompt=replace(each.prompt, period=0))),
    ),
    TraceFeature(
        "few tokens allowed", _some(lambda each: each.allowed), _changed(lambda each: replace(each, allowed=0))
    ),
    TraceFeature("grammar", _some(lambda each: each.grammar), _changed(lambda each: replace(each, grammar=False))),
    TraceFeature("scored prompt", _some(lambda each: each.scored), _changed(lambda each: replace(each, scored=False))),
    TraceFeature("rank", _some(lambda each: each.rank is not None), _changed(lambda each: replace(each, rank=None))),
    TraceFeature("idle rank", _leaves_ranks_idle, _on_all_ranks),
    TraceFeature("pause", lambda trace, _: any(burst.pause for burst in trace.bursts), _without_pauses),
)
"""All features: how requests arrive and share, then those of single requests."""

_SIZES = frozenset({"chunked prompt", "more than the pool"})
"""Features of lengths: without them, prompts may become too short for others."""

_NAMES = [each.name for each in FEATURES]

_OF_ALL = _NAMES[: _NAMES.index("abort")]
"""Features that many failures need: each is removed alone, after the others together."""
