"""Runs searches on the job processes of a campaign, one search at a time on each."""

from collections.abc import Iterable, Iterator

from attnfuzz.harness.campaign.jobs import Jobs
from attnfuzz.harness.defects.search import Search
from attnfuzz.harness.search.messages import SliceDone

SECONDS_PER_LOOK = 1.0


def run_searches(searches: Iterable[Search], jobs: Jobs) -> Iterator[Search]:
    """Run all `searches`, and yield each whenever there is news of it; at last when it is over.

    Raises JobEnded when a job process ends by itself.
    """
    waiting = iter(searches)
    running: dict[int, Search] = {}

    def begin_next(job: int) -> None:
        search = next(waiting, None)
        if search is not None:
            running[job] = search
            jobs.start(job, search.next_slice())

    for job in range(jobs.count):
        begin_next(job)
    while running:
        received = jobs.next_message(SECONDS_PER_LOOK)
        if received is None:
            continue
        job, message = received
        search = running[job]
        search.take(message)
        if isinstance(message, SliceDone):
            if search.over:
                del running[job]
                begin_next(job)
            else:
                jobs.start(job, search.next_slice())
        yield search
