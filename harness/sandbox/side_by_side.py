"""Requests that are run side by side, each in a worker that may die."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TypeVar

from attnfuzz.harness.sandbox.teams import Team, team_of, workers_of
from attnfuzz.harness.workers.supervisor import Workers

Request = TypeVar("Request")
Result = TypeVar("Result")


def side_by_side(
    requests: Sequence[Request],
    run: Callable[[Workers, Request], Result],
    *,
    backend: Callable[[Request], str],
    handler: str,
    jobs: int,
) -> Iterator[tuple[Request, Result]]:
    """Yield (request, `run(workers, request)`) when it is there, for `jobs` requests at a time, each in a thread.

    The workers, which call `handler`, are those of the request's `backend`. Raises the first exception of `run`.
    """
    waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
    for request in requests:
        waiting.put(request)
    results: queue.SimpleQueue[tuple[Request, Result | Exception]] = queue.SimpleQueue()

    def work(index: int) -> None:
        teams: dict[Team, Workers] = {}
        with ExitStack() as stack:
            while True:
                try:
                    request = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    team = team_of(backend(request))
                    if team not in teams:
                        teams[team] = stack.enter_context(workers_of(team, handler, index=index))
                    results.put((request, run(teams[team], request)))
                except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
                    results.put((request, error))

    for index in range(min(jobs, len(requests))):
        threading.Thread(target=work, args=(index,), daemon=True).start()
    for _ in requests:
        request, result = results.get()
        if isinstance(result, Exception):
            raise result
        yield request, result
