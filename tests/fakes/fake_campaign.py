"""Campaigns on fake jobs with a real archive, for tests of starting, killing and resuming them."""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

import msgspec
from fake_search import FakeJobs, FakeJudge, kv_lens

from attnfuzz.harness.campaign.engine import Campaign
from attnfuzz.harness.campaign.events import AnyEvent, Event
from attnfuzz.harness.campaign.jobs import JobEnded, Jobs
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.tasks import ChooseLean
from attnfuzz.harness.corpus import Corpus, Why
from attnfuzz.harness.findings.archive import Archive
from attnfuzz.harness.ledger.file import Ledger
from attnfuzz.harness.search.messages import AnyMessage, Message, Slice
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case_file import case_id
from attnfuzz.reference.case_types import decode_any
from attnfuzz.strategies.lean import Lean

E = TypeVar("E", bound=Event)

_DECODER = msgspec.json.Decoder(AnyEvent, dec_hook=decode_any)


def plan(
    out: Path,
    *,
    examples: int | None = 150,
    seconds: float | None = None,
    backends: tuple[str, ...] = ("fake",),
    jobs: int = 1,
    seed: int = 1,
    until_finding: bool = False,
    trial: float | None = None,
) -> Plan:
    """What tests ask of a campaign. It leans nowhere: the backend "fake" has no case space."""
    return Plan(
        backends=backends,
        examples=examples,
        seconds=seconds,
        seed=seed,
        jobs=jobs,
        contract="declared",
        guard=None,
        out=out,
        until_finding=until_finding,
        trial=trial,
    )


class FakeCorpus(Corpus):
    """Remembers what it is asked to keep, and runs `cases` first."""

    def __init__(self, folder: Path, cases: Sequence[AnyCase] = ()) -> None:
        super().__init__(folder)
        self.cases = cases
        self.asked: list[tuple[AnyCase, Why]] = []

    def replays(self, backend: str) -> list[AnyCase]:
        return [case for case in self.cases if case.backend == backend]

    def keep(self, case: AnyCase, *, why: Why, margins: Mapping[str, float] | None = None) -> str | None:
        del margins
        self.asked.append((case, why))
        return case_id(case)

    def keep_records(self, found: Iterable[tuple[AnyCase, Mapping[str, float]]]) -> list[str]:
        return [case_id(case) for case, margins in found if self.keep(case, why=Why.MARGIN, margins=margins)]

    def keep_for_coverage(self, cases: Iterable[AnyCase]) -> list[str]:
        return [case_id(case) for case in cases if self.keep(case, why=Why.COVERAGE)]

    def needed(self, cases: Sequence[AnyCase]) -> list[AnyCase]:
        return list(cases)


def begin(
    asked: Plan,
    jobs: Jobs,
    *,
    campaign: str = "1",
    corpus: Corpus | None = None,
    ledger: Ledger | None = None,
    past_events: Sequence[AnyEvent] = (),
    torn_bytes: int = 0,
    stop: threading.Event | None = None,
    choose_lean: ChooseLean = lambda _backend, _reached, _seed: Lean(),
) -> Campaign:
    """A campaign whose archive lies in the plan's `out`."""
    return Campaign(
        asked,
        jobs,
        campaign=campaign,
        archive=Archive(asked.out / "findings", asked.out / "unconfirmed", campaign=campaign, environment={}),
        corpus=corpus or FakeCorpus(asked.out / "corpus"),
        ledger=ledger,
        environment={"torch": "2"},
        past_events=past_events,
        torn_bytes=torn_bytes,
        stop=stop or threading.Event(),
        render=lambda case, _: f"rendered {kv_lens(case)}",
        choose_lean=choose_lean,
    )


def logged(events: Iterable[Event]) -> list[AnyEvent]:
    """The events as a log gives them back."""
    return [_DECODER.decode(msgspec.json.encode(event)) for event in events]


def of(kind: type[E], events: Iterable[Event]) -> list[E]:
    """The events of one kind."""
    return [event for event in events if isinstance(event, kind)]


class MortalJobs(FakeJobs):
    """Jobs that are killed from outside: the first after so many messages as `lives` begins with, and so on."""

    def __init__(self, judge: FakeJudge, lives: Iterable[int], count: int = 1) -> None:
        super().__init__(judge, count)
        self._lives = iter(lives)
        self._left = next(self._lives, None)
        self.restarts: Counter[int] = Counter()

    def next_message(self, timeout: float) -> tuple[int, AnyMessage] | None:
        if self._left == 0 and self._messages:
            self._left = next(self._lives, None)
            raise JobEnded(self._messages[0][0], "killed", killed=True)
        if self._left is not None:
            self._left -= 1
        return super().next_message(timeout)

    def restart(self, job: int) -> None:
        super().restart(job)
        self.restarts[job] += 1


class ScriptedJobs:
    """Jobs that say `script` of their first slice, and nothing to the others; an exception in it is raised."""

    def __init__(self, script: Iterable[Message | BaseException], count: int = 1) -> None:
        self.count = count
        self.slices: list[Slice] = []
        self.answers: list[bool] = []
        self._script = list(script)

    def start(self, job: int, task: Slice) -> None:
        self.slices.append(task)

    def next_message(self, timeout: float) -> tuple[int, AnyMessage] | None:
        if not self._script:
            return None
        message = self._script.pop(0)
        if isinstance(message, BaseException):
            raise message
        return 0, cast("AnyMessage", message)

    def answer(self, job: int, *, granted: bool) -> None:
        self.answers.append(granted)

    def kill(self, job: int) -> None:
        self._script.append(JobEnded(job, "killed", killed=True))

    def restart(self, job: int) -> None:
        pass
