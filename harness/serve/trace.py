"""A trace: requests to a server with their arrivals and aborts, from which every token follows."""

import zlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from attnfuzz.harness.verdict.wording import count

LOWEST_TOKEN = 16
TOKENS = 240
"""Token ids are drawn from these: every vocabulary has them, and most begin with special tokens."""

MOST_TOKENS = 1 << 20
MOST_REQUESTS = 1 << 12
MOST_RANKS = 1 << 10

Count = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]


class Abort(StrEnum):
    """When the client closes a request: once sent (it may still wait), in prefill, or after its first tokens."""

    SENT = "sent"
    PREFILL = "prefill"
    DECODE = "decode"


class Prompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first `shared` tokens of a `stream`, then `own` tokens of another.

    Prompts of one stream share a prefix. With a `period`, the tokens of the stream repeat.
    """

    stream: Count
    shared: Count
    own: Count = 0
    own_stream: Count = 0
    period: Count = 0

    @property
    def length(self) -> int:
        """Number of tokens."""
        return self.shared + self.own

    @property
    def tokens(self) -> tuple[int, ...]:
        """The token ids."""
        places = (place % self.period if self.period else place for place in range(self.shared))
        shared = (token(self.stream, place) for place in places)
        return (*shared, *(token(self.own_stream, place) for place in range(self.own)))

    def prefix_shared_with(self, other: "Prompt") -> int:
        """Count the first tokens that both have in common."""
        pairs = zip(self.tokens, other.tokens, strict=False)
        return next((place for place, (a, b) in enumerate(pairs) if a != b), min(self.length, other.length))


class ServedRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request for `tokens` tokens, and `n` completions.

    `allowed` limits the model to this number of first tokens of the prompt's stream: drafts made from the prompt are
    then accepted always (1, period 1), never (1, period 2) or at times; 0 is no limit. `grammar` constrains it to a
    regular expression. A `scored` request asks for the log-probabilities of its prompt too. One with a `rank` goes to
    that data-parallel rank of the server; the server chooses for others.
    """

    prompt: Prompt
    tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
    n: Annotated[int, Meta(ge=1, le=64)] = 1
    priority: Annotated[int, Meta(ge=-8, le=8)] = 0
    allowed: Annotated[int, Meta(ge=0, le=8)] = 0
    grammar: bool = False
    scored: bool = False
    rank: Annotated[int, Meta(ge=0, le=MOST_RANKS - 1)] | None = None
    abort: Abort | None = None

    @property
    def allowed_tokens(self) -> tuple[int, ...]:
        """The token ids that the model may choose; empty if all."""
        return tuple(dict.fromkeys(token(self.prompt.stream, place) for place in range(self.allowed)))

    @property
    def as_asked_alone(self) -> "ServedRequest":
        """The request as a baseline: never aborted, with no other to be preferred to, and on any rank."""
        return msgspec.structs.replace(self, abort=None, priority=0, rank=None)


class Burst(msgspec.Struct, frozen=True, omit_defaults=True):
    """Requests that arrive at once: `pause` seconds after the burst before, or after all requests before have ended."""

    requests: Annotated[tuple[ServedRequest, ...], Meta(min_length=1, max_length=MOST_REQUESTS)]
    pause: Annotated[float, Meta(ge=0, le=600)] = 0.0
    after_all: bool = False


class RequestTrace(msgspec.Struct, frozen=True):
    """The requests of one case, in bursts."""

    bursts: Annotated[tuple[Burst, ...], Meta(min_length=1, max_length=MOST_REQUESTS)]

    @property
    def requests(self) -> tuple[ServedRequest, ...]:
        """All requests, in the order in which they are sent."""
        return tuple(request for burst in self.bursts for request in burst.requests)

    @property
    def most_at_once(self) -> int:
        """The largest number of requests that may be under way together."""
        most = running = 0
        for burst in self.bursts:
            running = len(burst.requests) + (0 if burst.after_all else running)
            most = max(most, running)
        return most


def token(stream: int, place: int) -> int:
    """Return the token id at a place of a stream."""
    return LOWEST_TOKEN + zlib.crc32(b"%d/%d" % (stream, place)) % TOKENS


def with_requests(trace: RequestTrace, requests: Sequence[ServedRequest]) -> RequestTrace:
    """Return the trace with other requests in the place of its own."""
    rest = iter(requests)
    bursts = (
        msgspec.structs.replace(burst, requests=tuple(next(rest) for _ in burst.requests)) for burst in trace.bursts
    )
    return RequestTrace(bursts=tuple(bursts))


LEAST_SHARED = 4
"""Tokens of a shared prefix: an engine with small pages keeps these, and fewer agree by chance."""


def describe_trace(trace: RequestTrace) -> str:
    """Describe a trace in a line for each request."""
    lines = []
    number = 0
    for place, burst in enumerate(trace.bursts):
        when = "first" if not place else "after all before" if burst.after_all else f"{burst.pause:g} s later"
        for request in burst.requests:
            lines.append(
                f"{number:3}  {when if request is burst.requests[0] else 'with it':16}  {describe_request(request)}"
            )
            number += 1
    return "\n".join(lines)


def describe_request(request: ServedRequest) -> str:
    """Describe a request in half a line."""
    prompt = request.prompt
    parts = [f"prompt of {prompt.length}"]
    if prompt.shared:
        parts.append(f"{prompt.shared} of stream {prompt.stream}")
    extras = (
        (f"repeats every {prompt.period}", prompt.period),
        (f"n {request.n}", request.n > 1),
        (f"priority {request.priority}", request.priority),
        (f"{count(request.allowed, 'token')} allowed", request.allowed),
        ("grammar", request.grammar),
        ("prompt scored", request.scored),
        (f"rank {request.rank}", request.rank is not None),
        (f"closed: {request.abort}", request.abort),
    )
    return ", ".join([*parts, count(request.tokens, "token"), *(text for text, holds in extras if holds)])
