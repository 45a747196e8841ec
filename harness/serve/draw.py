"""Hypothesis strategies for traces, within the sizes and abilities of a server."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

from hypothesis import given, seed
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from msgspec.structs import replace

from attnfuzz.harness.serve.surface import Ability, Surface
from attnfuzz.harness.serve.trace import Abort, Burst, Prompt, RequestTrace, ServedRequest
from attnfuzz.strategies.lighter_draws import drawing, without_constants_of_sources

STREAMS = 3
"""Number of streams with which prompts begin: shared prefixes are common, and baselines are asked once."""

MOST_AT_ONCE = 24
MOST_BURSTS = 3
MOST_GENERATED = 12
MOST_OF_A_PROMPT = 512
"""Tokens of a prompt, unless a page or a chunk is larger."""

MOST_OF_AN_ABORTED = 256

PAUSES = (0.0, 0.005, 0.02, 0.1)
IDLE = 2.0
"""A long idle time, in seconds: engines that sleep or clean up do it then."""

DEFAULT_PAGE = 16
DEFAULT_CHUNK = 256


def traces(surface: Surface, concurrency: int, *, gentle: bool = False) -> SearchStrategy[RequestTrace]:
    """Draw traces within the sizes of `surface`; `gentle` ones abort nothing, name no ranks, never fill the server."""
    # Made once: Hypothesis looks through each strategy that it has not drawn from.
    most = min(concurrency, 4 if gentle else MOST_AT_ONCE)
    bursts = _bursts(surface, _requests(surface, gentle), _at_once(surface, most), gentle)
    if gentle or not surface.pool:
        return _traces(bursts, None)
    return _traces(bursts, _bursts(surface, _overcommitting(surface), st.integers(-(-most // 2), most), gentle))


def drawn(strategy: SearchStrategy[RequestTrace], *, number: int, seed_of: int) -> Sequence[RequestTrace]:
    """Draw traces: the same for the same seed."""
    found: list[RequestTrace] = []

    @drawing(number)
    @seed(seed_of)
    @given(strategy)
    def keep(trace: RequestTrace) -> None:
        found.append(trace)

    with without_constants_of_sources():
        keep()
    return found


class SlicesAhead:
    """Draws slices of `number` traces, the next one while the present one runs: a server waits for none.

    `seed_of` is the seed of a slice.
    """

    def __init__(self, number: int, concurrency: int, seed_of: Callable[[int], int]) -> None:
        self._number = number
        self._concurrency = concurrency
        self._seed_of = seed_of
        self._thread = ThreadPoolExecutor(1)
        self._ahead: dict[tuple[int, Surface, bool], Future[Sequence[RequestTrace]]] = {}

    def take(self, index: int, surface: Surface, *, gentle: bool, last: bool) -> Sequence[RequestTrace]:
        """Return the slice `index`; the next one is drawn from now on, unless it is the `last`."""
        wanted = (index, surface, gentle)
        drawing = self._ahead.pop(wanted, None) or self._thread.submit(self._draw, *wanted)
        found = drawing.result()
        self._ahead.clear()
        if not last:
            after = (index + 1, surface, gentle)
            self._ahead[after] = self._thread.submit(self._draw, *after)
        return found

    def end(self) -> None:
        """Draw no more."""
        self._thread.shutdown(cancel_futures=True)

    def _draw(self, index: int, surface: Surface, gentle: bool) -> Sequence[RequestTrace]:
        strategy = traces(surface, self._concurrency, gentle=gentle)
        return drawn(strategy, number=self._number, seed_of=self._seed_of(index))


@st.composite
def _traces(draw: DrawFn, bursts: SearchStrategy[Burst], overcommitted: SearchStrategy[Burst] | None) -> RequestTrace:
    if overcommitted is not None and draw(st.integers(0, 3)) == 0:
        return RequestTrace(bursts=(draw(overcommitted),))
    return RequestTrace(bursts=tuple(draw(bursts) for _ in range(draw(st.integers(1, MOST_BURSTS)))))


def _at_once(surface: Surface, most: int) -> SearchStrategy[int]:
    """Draw numbers of requests at once: around sizes of graphs and rows, and up to `most`."""
    edges = {size + change for size in (*surface.graphs, surface.rows) if size for change in (-1, 0, 1)}
    near = sorted(size for size in edges if 1 <= size <= most)
    few = st.integers(1, min(6, most))
    return st.one_of(few, few, st.integers(1, most), st.sampled_from(near or [most]))


@st.composite
def _bursts(
    draw: DrawFn, surface: Surface, requests: SearchStrategy[ServedRequest], sizes: SearchStrategy[int], gentle: bool
) -> Burst:
    number = draw(sizes)
    chosen = tuple(draw(requests) for _ in range(number))
    if draw(st.integers(0, 2)) == 0:
        # Repeated whole: the second finds all of its prompt but the last token in the cache.
        chosen = (*chosen[: -(number // 2) or None], *chosen[: number // 2])[:number]
    if surface.ranks > 1 and not gentle:
        ranks = draw(st.lists(_rank(surface.ranks), min_size=number, max_size=number))
        # All others are idle while one has all requests.
        if draw(st.booleans()):
            ranks = ranks[:1] * number
        chosen = tuple(replace(each, rank=rank) for each, rank in zip(chosen, ranks, strict=True))
    pause = draw(st.sampled_from(PAUSES))
    if not gentle and draw(st.integers(0, 39)) == 0:
        pause = IDLE
    return Burst(requests=chosen, pause=pause, after_all=draw(st.booleans()))


def _rank(ranks: int) -> SearchStrategy[int | None]:
    """Draw a rank, or the server's choice."""
    return st.one_of(st.none(), st.integers(0, ranks - 1), st.integers(0, ranks - 1))


def _overcommitting(surface: Surface) -> SearchStrategy[ServedRequest]:
    """Draw requests that together need more than the pool, and share little: some have to be preempted."""
    share = max(1, min(surface.pool // 4, _longest_prompt(surface)))
    tokens = max(1, min(4 * MOST_GENERATED, surface.longest - share - 2))
    own = st.integers(max(1, share // 4), share)
    prompts = st.builds(Prompt, stream=st.just(0), shared=st.just(1), own=own, own_stream=st.integers(STREAMS, 63))
    return st.builds(ServedRequest, prompt=prompts, tokens=st.integers(max(1, tokens // 2), tokens))


def _requests(surface: Surface, gentle: bool) -> SearchStrategy[ServedRequest]:
    able = surface.can
    options = {
        "tokens": st.one_of(st.sampled_from((1, 2, 5)), st.integers(1, MOST_GENERATED)),
        "n": _seldom(Ability.SEVERAL in able, st.sampled_from((2, 3)), 1),
        "priority": _seldom(Ability.PRIORITY in able, st.integers(-1, 1), 0),
        "allowed": _seldom(Ability.BIAS in able, st.integers(1, 2), 0),
        "grammar": _seldom(Ability.GRAMMAR in able, st.just(value=True), False),
        "scored": _seldom(Ability.SCORED in able, st.just(value=True), False),
    }
    if not gentle:
        options["abort"] = _seldom(True, st.sampled_from(Abort), None)
    return _request(_prompts(_lengths(surface, _longest_prompt(surface))), options, surface.longest)


@st.composite
def _request(
    draw: DrawFn, prompts: SearchStrategy[Prompt], options: dict[str, SearchStrategy[object]], longest: int
) -> ServedRequest:
    prompt = draw(prompts)
    request = {name: draw(values) for name, values in options.items()}
    if request.get("abort") is Abort.DECODE:
        # Long enough that it is under way when it is closed.
        request["tokens"] = min(MOST_OF_AN_ABORTED, longest - prompt.length - 1)
    if request["allowed"] and request["grammar"]:
        # No token might be left.
        request["grammar"] = False
    return ServedRequest(prompt=prompt, **request)  # type: ignore[arg-type]


def _seldom(able: bool, values: SearchStrategy[object], usual: object) -> SearchStrategy[object]:
    """Draw the usual value, and one of `values` at one time in eight, if the server is able."""
    unless = st.just(usual)
    return st.integers(0, 7).flatmap(lambda each: unless if each else values) if able else unless


_PERIODS = _seldom(True, st.integers(1, 3), 0)
_OWN_STREAMS = st.integers(STREAMS, STREAMS + 2)


@st.composite
def _prompts(draw: DrawFn, lengths: SearchStrategy[int]) -> Prompt:
    length = draw(lengths)
    own = min(draw(_own(length)), length)
    period = draw(_PERIODS)
    return Prompt(
        stream=draw(st.integers(0, STREAMS - 1)),
        shared=length - own,
        own=own,
        own_stream=draw(_OWN_STREAMS) if own else 0,
        period=period if isinstance(period, int) and length > own else 0,
    )


@lru_cache(1 << 10)
def _own(length: int) -> SearchStrategy[int]:
    """Draw prompts that diverge within the last tokens, or in their last page, or from the beginning."""
    return st.one_of(st.just(0), st.just(1), st.integers(0, min(17, length)), st.just(length))


def _lengths(surface: Surface, longest: int) -> SearchStrategy[int]:
    """Draw lengths of prompts: short, at edges of pages and of chunks, anything."""
    page, chunk = surface.page or DEFAULT_PAGE, surface.chunk or DEFAULT_CHUNK
    edges = sorted({edge for edge in _edges(page, chunk, longest) if 1 <= edge <= longest})
    at_edges = st.sampled_from(edges or [longest])
    return st.one_of(st.integers(1, 5), at_edges, at_edges, st.integers(1, longest))


def _edges(page: int, chunk: int, longest: int) -> Iterator[int]:
    for size, times in ((page, 6), (chunk, 3)):
        for multiple in range(1, times + 1):
            for change in (-1, 0, 1):
                if size * multiple <= longest:
                    yield size * multiple + change


def _longest_prompt(surface: Surface) -> int:
    wanted = max(MOST_OF_A_PROMPT, 2 * surface.page, 2 * surface.chunk if surface.chunk <= 4096 else 0)
    pool = surface.pool // 2 if surface.pool else wanted
    return max(1, min(wanted, surface.longest - 4 * MOST_GENERATED - 1, pool))
