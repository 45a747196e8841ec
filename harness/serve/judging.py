"""The oracles: a server lives, answers as it answers to a request alone, counts its tokens right, and ends empty."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from http import HTTPStatus

import msgspec

from attnfuzz.harness.serve.metrics import ServerCounters
from attnfuzz.harness.serve.reply import Completion, Reply, Sent
from attnfuzz.harness.serve.target import CANCELLED
from attnfuzz.harness.serve.trace import RequestTrace, ServedRequest


class ServedKind(StrEnum):
    """How a server fails."""

    DIED = "ServerDied"
    HUNG = "ServerHung"
    ERROR = "RequestError"
    WRONG_LOGPROBS = "LogprobMismatch"
    WRONG_TOKENS = "TokenMismatch"
    OTHERS_TOKENS = "TokensOfAnother"
    UNREPEATABLE = "Unrepeatable"
    MISCOUNTED = "CountMismatch"
    LEAKED = "PoolLeak"


WRONG_ANSWERS = frozenset(
    {ServedKind.WRONG_LOGPROBS, ServedKind.WRONG_TOKENS, ServedKind.OTHERS_TOKENS, ServedKind.UNREPEATABLE}
)
"""Kinds that one bug shows by turns, as the wrong key happens to weigh much or little."""


class ServedFault(msgspec.Struct, frozen=True):
    """A failure of a server: `place` is a part of the answer, `requests` are those that show it.

    `difference` is the largest of log-probabilities, 0 where none was compared.
    """

    kind: ServedKind
    message: str
    place: str = ""
    requests: tuple[int, ...] = ()
    difference: float = 0.0

    @property
    def seen(self) -> str:
        """Its kind and place."""
        return f"{self.kind.value} ({self.place})" if self.place else self.kind.value

    def like(self, other: "ServedFault") -> bool:
        """Return whether both may be the same bug."""
        return self.kind is other.kind or {self.kind, other.kind} <= WRONG_ANSWERS


def errors(sent: Sequence[Sent]) -> Iterator[ServedFault]:
    """Yield requests without an answer; one that is refused may be refused alone too, which is no failure."""
    hung = tuple(number for number, each in enumerate(sent) if each.status == -1)
    if hung:
        yield ServedFault(ServedKind.HUNG, f"request {hung[0]}: {sent[hung[0]].error}", requests=hung)
    for number, each in enumerate(sent):
        if each.error and each.status not in {-1, CANCELLED} and not refused(each):
            # A server that died is found so before: this one lives on.
            broken = "" if each.status else "the connection broke, but the server is alive: "
            yield ServedFault(ServedKind.ERROR, f"request {number}: {broken}{each.error}", requests=(number,))
            return


def wrong_counts(request: ServedRequest, reply: Reply) -> str:
    """Describe in a clause how a reply's own counts do not add up; empty if they do."""
    counted = sum(len(each.tokens) for each in reply.completions)
    if len(reply.completions) != request.n:
        return f"{len(reply.completions)} completions instead of {request.n}"
    if reply.prompt_tokens is not None and reply.prompt_tokens != request.prompt.length:
        return f"its prompt has {request.prompt.length} tokens, but the server counted {reply.prompt_tokens}"
    if reply.prompt is not None and reply.prompt != request.prompt.tokens:
        return "the answer is to another prompt"
    if reply.generated is not None and reply.generated != counted:
        return f"{counted} tokens were received, but the server counted {reply.generated}"
    if not request.grammar and any(len(each.tokens) != request.tokens for each in reply.completions):
        lengths = ", ".join(str(len(each.tokens)) for each in reply.completions)
        return f"{lengths} tokens instead of {request.tokens}, though the end of a sequence is ignored"
    if any(len(each.tokens) != len(each.logprobs) for each in reply.completions):
        return "some tokens have no log-probability"
    return ""


class Compared(msgspec.Struct, frozen=True):
    """Two answers to one request: their largest difference, where it is, and if tokens differ beyond a near tie."""

    difference: float = 0.0
    place: str = ""
    tokens_differ: bool = False


def compare_replies(request: ServedRequest, one: Reply, other: Reply, floor: float) -> Compared:
    """Compare two answers to a request up to the first token that differs.

    At that token, `one` chose a and `other` b. If all log-probabilities differ by at most `floor`, those of a in `one`
    and b in `other` do so too, since each is the largest in its answer. Of several completions, which are sampled, the
    tokens before are compared alone.
    """
    worst = _largest(one.scores, other.scores, "prompt")
    for mine, theirs in zip(one.completions, other.completions, strict=False):
        compared = _compare_completions(request, mine, theirs, floor)
        worst = max(worst, compared, key=lambda each: (each.tokens_differ, each.difference))
    return worst


def _compare_completions(request: ServedRequest, mine: Completion, theirs: Completion, floor: float) -> Compared:
    pairs = zip(mine.tokens, theirs.tokens, strict=False)
    split = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
    worst = _largest(mine.logprobs[:split], theirs.logprobs[:split], "")
    if split is None or split >= min(len(mine.logprobs), len(theirs.logprobs)):
        return worst
    apart = abs(mine.logprobs[split] - theirs.logprobs[split])
    # Sampled tokens may differ: seeds promise little where drafts are sampled too.
    if request.n > 1 or (floor and apart <= floor):
        return worst
    return Compared(max(worst.difference, apart, floor * 1.001), _place(split), tokens_differ=True)


def _largest(mine: Sequence[float], theirs: Sequence[float], place: str) -> Compared:
    apart = [abs(a - b) if a == a and b == b else float("inf") for a, b in zip(mine, theirs, strict=False)]  # noqa: PLR0124
    if not apart or not max(apart):
        return Compared()
    first = apart.index(max(apart))
    return Compared(max(apart), place or _place(first))


def _place(index: int) -> str:
    return "later tokens" if index else "first token"


def judge_reply(
    number: int, request: ServedRequest, sent: Reply, alone: Reply, floor: float
) -> tuple[ServedFault | None, Compared]:
    """Compare an answer in company with the one alone."""
    compared = compare_replies(request, sent, alone, floor)
    if compared.difference <= floor and not compared.tokens_differ:
        return None, compared
    kind = ServedKind.WRONG_TOKENS if compared.tokens_differ else ServedKind.WRONG_LOGPROBS
    tokens = "different tokens than" if compared.tokens_differ else "the same tokens as"
    limit = f"where {floor:.2g} is allowed" if floor else "where none is allowed"
    message = (
        f"request {number}: {tokens} alone after a flush, log-probabilities differ by {compared.difference:.3g} "
        f"({compared.place}), {limit}"
    )
    fault = ServedFault(kind, message, compared.place, (number,), compared.difference)
    return fault, compared


def owner_of(reply: Reply, number: int, alone: Sequence[Reply | None], requests: Sequence[ServedRequest]) -> int | None:
    """Find the other request whose tokens, alone, are those of this reply; None if there is none."""
    tokens = [each.tokens for each in reply.completions]
    if max(map(len, tokens), default=0) < _LEAST_TO_OWN:
        return None
    for other, theirs in enumerate(alone):
        differ = requests[other].prompt != requests[number].prompt
        if theirs is not None and differ and [each.tokens for each in theirs.completions] == tokens:
            return other
    return None


_LEAST_TO_OWN = 3
"""Fewer tokens may agree by chance."""


def judge_counters(
    trace: RequestTrace,
    sent: Sequence[Sent],
    before: ServerCounters,
    after: ServerCounters,
    *,
    counts_several: bool = True,
) -> Iterator[ServedFault]:
    """Compare counters before and after a trace: they grow by the tokens of its requests, and none is left running.

    Unless the server `counts_several`, tokens of requests with n > 1 may be missing.
    """
    if not after.idle:
        left = f"{after.running or 0:g} requests are running and {after.waiting or 0:g} waiting"
        text = f"{left} after all were ended or closed"
        yield ServedFault(ServedKind.LEAKED, text, "requests")
    pairs = list(zip(trace.requests, sent, strict=True))
    if all(each.reply is not None or each.closed for _, each in pairs):
        yield from _grown("prompt", before.prompt, after.prompt, _prompt_bounds(pairs, counts_several))
        yield from _grown("generated", before.generated, after.generated, _generated_bounds(pairs, counts_several))


Pairs = Sequence[tuple[ServedRequest, Sent]]


def _prompt_bounds(pairs: Pairs, counts_several: bool) -> tuple[int, int]:
    ended = sum(request.prompt.length for request, sent in pairs if sent.reply and (counts_several or request.n == 1))
    # A prompt with n completions is counted once or n times. One that was closed was counted or not.
    most = sum(request.prompt.length * request.n for request, _ in pairs)
    return ended, most


def _generated_bounds(pairs: Pairs, counts_several: bool) -> tuple[int, int]:
    generated = [
        (request.n, sum(len(each.tokens) for each in sent.reply.completions)) for request, sent in pairs if sent.reply
    ]
    least = sum(tokens for n, tokens in generated if counts_several or n == 1)
    ended = sum(tokens for _, tokens in generated)
    return least, ended + sum(request.tokens * request.n for request, sent in pairs if sent.closed)


def _grown(name: str, before: float | None, after: float | None, bounds: tuple[int, int]) -> Iterator[ServedFault]:
    if before is None or after is None or bounds[0] <= after - before <= bounds[1]:
        return
    least, most = bounds
    wanted = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    text = f"the counter of {name} tokens grew by {after - before:,.0f}, but the requests had {wanted}"
    yield ServedFault(ServedKind.MISCOUNTED, text, f"{name} tokens")


def left_over(counters: ServerCounters) -> ServedFault | None:
    """Report a pool that is not empty although the server is idle and its cache was flushed."""
    if not counters.usage:
        return None
    return ServedFault(
        ServedKind.LEAKED, f"{counters.usage:.3%} of the pool are still in use after all requests have ended", "pool"
    )


def refused(sent: Sent) -> bool:
    """Return whether the server refused a request for a reason of its own."""
    return HTTPStatus.BAD_REQUEST <= sent.status < HTTPStatus.INTERNAL_SERVER_ERROR and sent.status != CANCELLED
