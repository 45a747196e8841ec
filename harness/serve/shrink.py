"""Minimizing a trace that fails: fewest requests, shortest prompts, plainest requests, fewest at once."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from attnfuzz.harness.serve.trace import LEAST_SHARED, Burst, Prompt, RequestTrace, ServedRequest, with_requests

Fails = Callable[[RequestTrace], bool]


def shrink_trace(
    trace: RequestTrace,
    fails: Fails,
    *,
    over: Callable[[], bool],
    shown_by: Sequence[int] = (),
    allowed: Callable[[RequestTrace], bool] = lambda _: True,
) -> tuple[RequestTrace, int]:
    """Shrink until the time is `over`. Returns the smallest `allowed` trace that still `fails`, and the number tried.

    The failure is `shown_by` these requests: first, they are tried with the most likely others alone.
    """
    shrinking = _Shrinking(trace, fails, over, shown_by, allowed)
    with contextlib.suppress(_OutOfTime):
        shrinking.run()
    return shrinking.trace, shrinking.tried


class _OutOfTime(Exception):
    """The time to minimize is over."""


class _Shrinking:
    """The smallest trace so far."""

    def __init__(
        self,
        trace: RequestTrace,
        fails: Fails,
        over: Callable[[], bool],
        shown_by: Sequence[int],
        allowed: Callable[[RequestTrace], bool],
    ) -> None:
        self.trace = trace
        self.tried = 0
        self._fails = fails
        self._over = over
        self._shown_by = shown_by
        self._allowed = allowed

    def run(self) -> None:
        """Make it smaller until nothing helps."""
        if any(burst.pause for burst in self.trace.bursts):
            # First, since every other candidate would wait too.
            self._takes(RequestTrace(bursts=tuple(replace(burst, pause=0.0) for burst in self.trace.bursts)))
        any(self._takes(candidate) for candidate in _likely(self.trace, self._shown_by))
        before = None
        first = True
        while before != self.trace:
            before = self.trace
            self._first_that_fails(_fewer)
            self._first_that_fails(_plainer)
            self._shorten(thoroughly=first)
            first = False

    def _takes(self, candidate: RequestTrace) -> bool:
        """Take a candidate that fails."""
        if self._over():
            raise _OutOfTime
        if not self._allowed(candidate):
            return False
        self.tried += 1
        if not self._fails(candidate):
            return False
        self.trace = candidate
        return True

    def _first_that_fails(self, candidates: Callable[[RequestTrace], Iterator[RequestTrace]]) -> None:
        while any(self._takes(candidate) for candidate in candidates(self.trace)):
            pass

    def _shorten(self, *, thoroughly: bool) -> None:
        """Shorten answers and prompts: of all requests first, then of each, by bisection."""
        requests = self.trace.requests
        if any(request.tokens > 1 for request in requests):
            self._takes(with_requests(self.trace, [replace(request, tokens=1) for request in requests]))
        for place in range(len(requests)):
            for part in _PARTS:
                self._bisect(place, part, thoroughly=thoroughly)

    def _bisect(self, place: int, part: str, *, thoroughly: bool) -> None:
        passing, failing = _least(self.trace.requests[place], part), _length(self.trace.requests[place], part)
        if failing <= passing or self._takes(self._with(place, part, passing)):
            return
        # A length that was bisected before has to become smaller by one first.
        if not thoroughly and (
            failing - passing == 1 or not self._takes(self._with(place, part, failing := failing - 1))
        ):
            return
        while failing - passing > 1:
            middle = (passing + failing) // 2
            if self._takes(self._with(place, part, middle)):
                failing = middle
            else:
                passing = middle

    def _with(self, place: int, part: str, length: int) -> RequestTrace:
        requests = list(self.trace.requests)
        request = requests[place]
        requests[place] = replace(request, tokens=length) if part == "tokens" else _prompted(request, **{part: length})
        return with_requests(self.trace, requests)


_PARTS = ("tokens", "own", "shared")


def _length(request: ServedRequest, part: str) -> int:
    return request.tokens if part == "tokens" else int(getattr(request.prompt, part))


def _least(request: ServedRequest, part: str) -> int:
    """Return the least length of a part: an answer and a prompt keep a token."""
    return int(part == "tokens" or request.prompt.length == _length(request, part))


def _likely(trace: RequestTrace, shown_by: Sequence[int]) -> Iterator[RequestTrace]:
    """Yield traces of the requests that show a failure: with those that share a prefix with one, or come with one."""
    requests = trace.requests
    if not shown_by:
        return
    bursts = [number for number, burst in enumerate(trace.bursts) for _ in burst.requests]
    sharing = {
        place
        for place, request in enumerate(requests)
        for shown in shown_by
        if request.prompt.prefix_shared_with(requests[shown].prompt) >= LEAST_SHARED
    }
    beside = {place for place, burst in enumerate(bursts) if burst in {bursts[shown] for shown in shown_by}}
    tried: list[set[int]] = [set(range(len(requests)))]
    for others in (sharing & beside, sharing, beside):
        places = others | set(shown_by)
        if places not in tried:
            tried.append(places)
            yield kept(trace, places)


def _fewer(trace: RequestTrace) -> Iterator[RequestTrace]:
    """Yield traces without some of the requests: halves first, then single ones."""
    number = len(trace.requests)
    size = number
    while (size := size // 2) >= 1:
        for start in range(0, number, size):
            left = set(range(number)) - set(range(start, start + size))
            if left:
                yield kept(trace, left)


def kept(trace: RequestTrace, places: set[int]) -> RequestTrace:
    """Keep the requests at these places alone."""
    bursts: list[Burst] = []
    place = 0
    for burst in trace.bursts:
        requests = tuple(each for number, each in enumerate(burst.requests, place) if number in places)
        place += len(burst.requests)
        if requests:
            bursts.append(replace(burst, requests=requests))
    return RequestTrace(bursts=tuple(bursts))


def _plainer(trace: RequestTrace) -> Iterator[RequestTrace]:
    """Yield traces with plainer arrivals and requests: of all requests first, then of one."""
    bursts = trace.bursts
    if len(bursts) > 1:
        yield RequestTrace(bursts=(Burst(requests=trace.requests),))
    for place, burst in enumerate(bursts):
        if burst.pause:
            yield _with_burst(trace, place, replace(burst, pause=0.0))
        if burst.after_all and place:
            yield _with_burst(trace, place, replace(burst, after_all=False))
        if place:
            joined = replace(bursts[place - 1], requests=(*bursts[place - 1].requests, *burst.requests))
            yield RequestTrace(bursts=(*bursts[: place - 1], joined, *bursts[place + 1 :]))
    for change in _PLAIN:
        yield from _changed(trace, change)


def _changed(trace: RequestTrace, change: Callable[[ServedRequest], ServedRequest]) -> Iterator[RequestTrace]:
    """Yield the trace with all requests changed, and with one, where that makes a difference."""
    requests = trace.requests
    other = [change(request) for request in requests]
    different = [place for place, (a, b) in enumerate(zip(requests, other, strict=True)) if a != b]
    if len(different) > 1:
        yield with_requests(trace, other)
    for place in different:
        yield with_requests(trace, [*requests[:place], other[place], *requests[place + 1 :]])


def _with_burst(trace: RequestTrace, place: int, burst: Burst) -> RequestTrace:
    return RequestTrace(bursts=(*trace.bursts[:place], burst, *trace.bursts[place + 1 :]))


def _prompted(request: ServedRequest, **changes: int) -> ServedRequest:
    return replace(request, prompt=replace(request.prompt, **changes))


_PLAIN: tuple[Callable[[ServedRequest], ServedRequest], ...] = (
    lambda request: replace(request, abort=None),
    lambda request: replace(request, n=1),
    lambda request: replace(request, priority=0),
    lambda request: replace(request, rank=None),
    lambda request: replace(request, rank=request.rank and 0),
    lambda request: replace(request, grammar=False),
    lambda request: replace(request, scored=False),
    lambda request: replace(request, allowed=0),
    lambda request: _prompted(request, period=0),
    lambda request: replace(request, prompt=Prompt(request.prompt.stream, request.prompt.length)),
)
