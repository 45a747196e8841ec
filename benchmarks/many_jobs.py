"""Cost of many jobs for a campaign's main process: CPU time and memory, with simulated jobs that judge nothing."""

import heapq
import resource
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import islice, pairwise
from pathlib import Path
from unittest.mock import patch

import click
import msgspec
from measurement import backends_option, count_option, sample, seed_option, show

from attnfuzz.harness.campaign.engine import Campaign
from attnfuzz.harness.campaign.events import Progress
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.log import EventLog
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.schedule import EXAMPLES_PER_SLICE
from attnfuzz.harness.corpus import Corpus
from attnfuzz.harness.findings.archive import Archive
from attnfuzz.harness.search.messages import AnyMessage, Message, Slice, SliceDone, Tally
from attnfuzz.harness.search.novelty import Novelty
from attnfuzz.harness.search.tally import SECONDS_PER_TALLY
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.reference.case_types import decode_any
from attnfuzz.strategies.coverage import ATTENTION_SPACE

RECORDED = 4
"""Number of jobs whose messages are prepared. The others repeat them: the main process does the same work for each."""

SLICES = 2
"""Number of slices of a job in which cases have new features; in later slices, jobs only send counts."""

PLANNED_SECONDS = 3600.0

MARGINS = {"T1": 0.11, "T2": 0.07, "T3": 0.05, "T4": 0.12, "T5": 0.2, "T6": 0.02}
PHASES = {"place": 0.005, "kernel": 0.001, "reference": 0.003, "judge": 0.003}


@dataclass(frozen=True)
class Sent:
    """A message, encoded as a job sends it, and the seconds since the start of its slice."""

    after: float
    message: bytes


def recorded(backend: str, *, rate: float, seed: int) -> list[list[Sent]]:
    """Return the messages of a job's first slices and of a later one, at `rate` passing cases per second."""
    novelty = Novelty(lambda _: ATTENTION_SPACE)
    verdict = Verdict(observations=(), margins=MARGINS, seconds=PHASES, rows=40)
    cases = iter(sample(backend, SLICES * EXAMPLES_PER_SLICE, seed))
    slices = []
    for _ in range(SLICES):
        news = [(number, novelty.of(case, verdict)) for number, case in enumerate(islice(cases, EXAMPLES_PER_SLICE))]
        slices.append(_counted(rate, [_sent(number / rate, each) for number, each in news if each is not None]))
    return [*slices, _counted(rate, [])]


def _sent(after: float, message: Message) -> Sent:
    return Sent(after, msgspec.json.encode(message))


def _counted(rate: float, news: list[Sent]) -> list[Sent]:
    """Return the messages of a slice: its news and its counts."""
    seconds = EXAMPLES_PER_SLICE / rate
    sent, counted = list(news), 0
    for number in range(1, int(seconds / SECONDS_PER_TALLY) + 1):
        after = number * SECONDS_PER_TALLY
        cases = int(after * rate) - counted
        counted += cases
        if cases:
            phases = {phase: each * cases for phase, each in PHASES.items()}
            sent.append(
                _sent(after, Tally(searched=cases, cases=cases, rows=40 * cases, margins=MARGINS, phases=phases))
            )
    whole = Tally(searched=EXAMPLES_PER_SLICE, cases=EXAMPLES_PER_SLICE)
    sent.append(_sent(seconds, SliceDone(tally=whole, stopped_early=False, seconds=seconds, unsupported={})))
    return sorted(sent, key=lambda each: each.after)


class SimulatedJobs:
    """`count` jobs that send recorded messages at their times on a simulated clock, without any waiting."""

    def __init__(self, count: int, recordings: Sequence[list[list[Sent]]]) -> None:
        self.count = count
        self.now = 0.0
        self.messages = 0
        self._recordings = recordings
        self._slices = [0] * count
        self._due: list[tuple[float, int, float, Sequence[Sent], int]] = []
        self._decoder = msgspec.json.Decoder(AnyMessage, dec_hook=decode_any)

    def clock(self) -> float:
        """Return the seconds of the simulation."""
        return self.now

    def start(self, job: int, task: Slice) -> None:
        """Begin to send the messages of a slice. Jobs begin within a second of each other."""
        # Encode the slice, as is done for a process.
        msgspec.json.encode(task)
        slices = self._recordings[job % len(self._recordings)]
        number = self._slices[job]
        self._slices[job] += 1
        apart = 0.0 if number else job / self.count
        self._queue(job, self.now + apart, slices[min(number, len(slices) - 1)], 0)

    def answer(self, job: int, *, granted: bool) -> None:
        """Do nothing: these jobs claim no failure."""

    def next_message(self, timeout: float) -> tuple[int, AnyMessage] | None:
        """Return the next message that falls within `timeout` seconds, or None."""
        if not self._due or self._due[0][0] > self.now + timeout:
            self.now += timeout
            return None
        due, job, begun, slice_, at = heapq.heappop(self._due)
        self.now = max(self.now, due)
        self.messages += 1
        if at + 1 < len(slice_):
            self._queue(job, begun, slice_, at + 1)
        return job, self._decoder.decode(slice_[at].message)

    def restart(self, job: int) -> None:
        """Do nothing: no job ends."""

    def kill(self, job: int) -> None:
        """Do nothing: no job is silent."""

    def _queue(self, job: int, begun: float, slice_: Sequence[Sent], at: int) -> None:
        heapq.heappush(self._due, (begun + slice_[at].after, job, begun, slice_, at))


@dataclass(frozen=True)
class Reading:
    """The main process's work in `seconds` of the simulation: its CPU seconds, and the MiB and bytes that it holds."""

    seconds: float
    cpu: float
    messages: int
    events: int
    cases: int
    mib: float
    log_bytes: int

    def __sub__(self, before: "Reading") -> "Reading":
        """Return the difference from `before`."""
        return Reading(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


@click.command()
@backends_option(("trtllm_mha",))
@click.option("--nodes", multiple=True, type=click.IntRange(min=1), default=(2, 8, 32, 64), show_default=True)
@count_option("--jobs", 16, "Jobs of a node.")
@count_option("--rate", 25, "Cases that a job judges per second.")
@count_option("--seconds", 40, "How long each campaign runs, by the clock of the simulation.")
@seed_option
def main(*, backends: tuple[str, ...], nodes: tuple[int, ...], jobs: int, rate: int, seconds: int, seed: int) -> None:
    """Run campaigns of one backend on simulated nodes, from an empty corpus, and measure the main process.

    Messages are decoded and folded like those of real jobs, events are logged, and new cases are kept. Reading pipes
    and Ray's own work are left out. A main process on its own core falls behind once it needs more than 100% of it.
    Jobs have much news in the first half of the time, and hardly any later.
    """
    for backend in backends:
        recordings = [recorded(backend, rate=rate, seed=seed + number) for number in range(RECORDED)]
        rows = []
        for count in nodes:
            readings = _campaign(backend, SimulatedJobs(count * jobs, recordings), seconds)
            for part, (before, after) in zip(("first half", "second"), pairwise(readings), strict=True):
                rows.append(_row(f"{count}, {part}", count * jobs, after - before))
        columns = ("nodes", "jobs", "cases/s", "messages/s", "events/s", "CPU", "us a message", "MiB more", "log/s")
        show(f"{backend}: the main process of a campaign, {rate} cases per second and job", columns, rows)


def _row(nodes: str, jobs: int, run: Reading) -> list[str]:
    return [
        nodes,
        f"{jobs}",
        f"{run.cases / run.seconds:,.0f}",
        f"{run.messages / run.seconds:,.0f}",
        f"{run.events / run.seconds:.0f}",
        f"{run.cpu / run.seconds:.0%}",
        f"{run.cpu / run.messages * 1e6:.0f}",
        f"{run.mib:.0f}",
        f"{run.log_bytes / run.seconds / 1024:,.0f} KiB",
    ]


def _campaign(backend: str, jobs: SimulatedJobs, seconds: float) -> list[Reading]:
    """Return readings at the start, halfway and at the end."""
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as folder, patch.object(time, "monotonic", jobs.clock):
        home = Home(Path(folder))
        plan = Plan(
            backends=(backend,),
            examples=None,
            seconds=PLANNED_SECONDS,
            seed=1,
            jobs=jobs.count,
            contract="declared",
            guard=None,
            out=home.path,
        )
        name = home.new_id()
        with home.locked(), EventLog(home.log(name)) as log:
            engine = Campaign(
                plan,
                jobs,
                campaign=name,
                archive=Archive(home.findings, home.unconfirmed, campaign=name, environment={}),
                corpus=Corpus(home.corpus),
                ledger=None,
                environment={},
                stop=stop,
                render=lambda *_: "",
            )
            events = cases = 0

            def reading() -> Reading:
                log_bytes = home.log(name).stat().st_size
                return Reading(jobs.now, time.process_time(), jobs.messages, events, cases, _resident(), log_bytes)

            readings = [reading()]
            for event in engine.events():
                log(event)
                events += 1
                cases += event.tally.cases if isinstance(event, Progress) else 0
                if len(readings) < 3 and jobs.now >= seconds * len(readings) / 2:
                    readings.append(reading())
                    if len(readings) == 3:
                        stop.set()
    return readings


def _resident() -> float:
    """Return the MiB that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


if __name__ == "__main__":
    main()
