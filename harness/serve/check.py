"""One trace on one server: run, then judged by requests alone, counters and the pool."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from attnfuzz.harness.serve.client import NoAnswer
from attnfuzz.harness.serve.judging import (
    ServedFault,
    ServedKind,
    errors,
    judge_counters,
    judge_reply,
    left_over,
    owner_of,
    refused,
    wrong_counts,
)
from attnfuzz.harness.serve.metrics import ServerCounters
from attnfuzz.harness.serve.reply import Reply, Sent
from attnfuzz.harness.serve.target import Busy, TestedServer
from attnfuzz.harness.serve.trace import RequestTrace

SECONDS_TO_DIE = 0.5
"""Time between a broken connection and the end of /health, where both are due to one death."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The faults of a trace, the worst first, and the largest difference that was allowed."""

    faults: tuple[ServedFault, ...] = ()
    largest: float = 0.0
    preempted: float = 0.0
    hits: float = 0.0

    @property
    def spoilt(self) -> bool:
        """Whether the server may not be used further: it died, hangs, or keeps pages that were to be freed."""
        ending = {ServedKind.DIED, ServedKind.HUNG, ServedKind.LEAKED}
        return any(fault.kind in ending for fault in self.faults)


def judge_trace(server: TestedServer, trace: RequestTrace, floor: float) -> Judged:
    """Run a trace and judge it. Raises ServerError, also Busy if the cache can't be flushed before it."""
    try:
        server.flush()
        before = server.counters()
        sent = server.run(trace)
        if any(each.status == 0 for each in sent):
            # A server that is ending may answer a little longer.
            time.sleep(SECONDS_TO_DIE)
        if not server.alive:
            return Judged(faults=(_death(server, sent),))
        after = server.settled()
        if server.mine and None not in {before.began, after.began} and before.began != after.began:
            return Judged(faults=(_death(server, sent, "someone else restarted it (process_start_time_seconds)"),))
    except NoAnswer as error:
        return Judged(faults=(_death(server, (), str(error)),))
    faults = list(errors(sent))
    if server.mine:
        faults += judge_counters(trace, sent, before, after, counts_several=server.api.counts_several)
    if any(fault.kind is ServedKind.HUNG or fault.place == "requests" for fault in faults):
        return Judged(faults=tuple(faults))
    try:
        compared, largest = _compared(server, trace, sent, floor)
        faults = [*compared, *faults]
        server.flush()
        if server.mine and (left := left_over(server.settled())) is not None:
            faults.append(left)
    except NoAnswer as error:
        return Judged(faults=(_death(server, sent, str(error)),))
    except Busy:
        if not server.mine:
            raise
        # It could be flushed before the trace, and no one else uses it.
        faults.append(
            ServedFault(ServedKind.LEAKED, "the cache can't be flushed after all requests have ended", "flush")
        )
        largest = 0.0
    return Judged(
        faults=tuple(faults),
        largest=largest,
        preempted=_more(before, after, "preempted"),
        hits=_more(before, after, "hits"),
    )


def _more(before: ServerCounters, after: ServerCounters, name: str) -> float:
    return (getattr(after, name) or 0.0) - (getattr(before, name) or 0.0)


def _death(server: TestedServer, sent: Sequence[Sent], error: str = "") -> ServedFault:
    status = None if server.launched is None else server.launched.exit_status
    broken = tuple(number for number, each in enumerate(sent) if each.status == 0)
    first = error or (sent[broken[0]].error if broken else "/health does not answer")
    how = f"its first process ended with {status}; " if status is not None else ""
    return ServedFault(ServedKind.DIED, f"the server died: {how}{first}", "", broken)


def _compared(
    server: TestedServer, trace: RequestTrace, sent: list[Sent], floor: float
) -> tuple[list[ServedFault], float]:
    """Compare each answer with that of its request alone. Returns faults, and the largest allowed difference."""
    requests = trace.requests
    alone = [server.alone(request).reply if each.reply else None for request, each in zip(requests, sent, strict=True)]
    faults: list[ServedFault] = []
    allowed = 0.0
    for number, (request, each, right) in enumerate(zip(requests, sent, alone, strict=True)):
        if each.reply is None:
            faults += _refused_only_here(server, trace, number, each)
            continue
        if text := wrong_counts(request, each.reply):
            faults.append(ServedFault(ServedKind.MISCOUNTED, f"request {number}: {text}", "answer", (number,)))
        if right is None:
            continue
        fault, compared = judge_reply(number, request, each.reply, right, floor)
        if fault is None:
            allowed = max(allowed, compared.difference)
        else:
            faults.append(_explained(server, fault, each.reply, alone, trace, floor))
    return sorted(faults, key=lambda fault: -fault.difference), allowed


def _refused_only_here(server: TestedServer, trace: RequestTrace, number: int, sent: Sent) -> list[ServedFault]:
    """Report a refused request, if it is answered alone."""
    if not refused(sent) or server.alone(trace.requests[number]).reply is None:
        return []
    text = f"request {number} is refused here, but answered alone: {sent.error}"
    return [ServedFault(ServedKind.ERROR, text, "refused", (number,))]


def _explained(
    server: TestedServer, fault: ServedFault, reply: Reply, alone: list[Reply | None], trace: RequestTrace, floor: float
) -> ServedFault:
    """Explain the fault as tokens of another request, or as an answer that no two runs alone agree on."""
    number = fault.requests[0]
    request = trace.requests[number]
    owner = owner_of(reply, number, alone, trace.requests)
    if owner is not None:
        text = f"request {number} got the tokens of request {owner}"
        return ServedFault(ServedKind.OTHERS_TOKENS, text, fault.place, (number, owner), fault.difference)
    again = server.ask_alone(request).reply
    right = alone[number]
    if again is None or right is None:
        return fault
    twice, compared = judge_reply(number, request, again, right, floor)
    if twice is None:
        return fault
    apart = f"{compared.difference:.3g}"
    text = f"request {number} sent alone gets different answers, each after a flush: they differ by {apart}"
    return ServedFault(ServedKind.UNREPEATABLE, text, compared.place, (number,), compared.difference)
