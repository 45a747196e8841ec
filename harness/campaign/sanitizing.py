"""A campaign under compute-sanitizer: a few small cases that cover pairs of features, under three of its tools.

Each tool runs all cases in one process, and those with a report once more in a second one. A case that is reported
twice is filed, as it was drawn.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, zip_longest
from typing import NamedTuple, Protocol

from attnfuzz.harness.campaign.events import (
    CampaignFinished,
    CoverageGrew,
    Event,
    FindingFiled,
    Progress,
    ScriptMade,
    Trouble,
)
from attnfuzz.harness.campaign.filing import Filing, Render
from attnfuzz.harness.campaign.knowledge import Knowledge
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.resume import opening
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.family import family_of
from attnfuzz.harness.findings.archive import Archive
from attnfuzz.harness.ledger.file import Ledger
from attnfuzz.harness.sanitizer.run import NotSanitized, Sanitized, observations
from attnfuzz.harness.search.examples import derive_seed, drawn_cases, run_examples
from attnfuzz.harness.search.messages import NOT_COME_BACK, Caught, Suspect, Tally
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.sanitizer_tool import SanitizerTool
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Case

TOOLS = (SanitizerTool.RACECHECK, SanitizerTool.SYNCCHECK, SanitizerTool.INITCHECK)

_EXAMPLES = 400
"""Cases of a backend to choose from."""
_SECONDS_TO_CHOOSE = 5.0
_MOST_OF_A_BACKEND = 12
_MOST_TOKENS, _MOST_KEYS = 64, 512
"""Limits of a small case: racecheck makes a kernel 10 to 1,000 times slower."""

_SHARE_OF_FIRST_RUNS = 0.6
"""Share of the time; the rest is for second runs."""

_NO_SCRIPT = "reports of compute-sanitizer need no wrong output: attnfuzz replay runs the case under the tool"


class RunUnder(Protocol):
    """Runs cases under a tool (`sanitizer.run.run`)."""

    def __call__(
        self, tool: SanitizerTool, cases: Sequence[AnyCase], *, seconds: float, contract: str, stop: threading.Event
    ) -> Sanitized:
        """Return the reports of each case. Raises NotSanitized."""
        ...


class _Found(NamedTuple):
    """A new failure: the number of the case that shows it, and the failure."""

    number: int
    observation: Observation


class SanitizedCampaign:
    """Runs `plan` under compute-sanitizer, as the campaign of that name. `stop` ends it early."""

    def __init__(
        self,
        plan: Plan,
        *,
        campaign: str,
        archive: Archive,
        ledger: Ledger,
        environment: Mapping[str, str],
        stop: threading.Event,
        render: Render,
        run: RunUnder,
    ) -> None:
        self._plan, self._name, self._environment = plan, campaign, dict(environment)
        self._archive, self._stop, self._run = archive, stop, run
        self._started = time.monotonic()
        self._knowledge, self._standing = Knowledge(), Standing()
        self._filing = Filing(
            archive=archive, ledger=ledger, knowledge=self._knowledge, past={}, clock=self._clock, render=render
        )

    def events(self) -> Iterator[Event]:
        """Run the campaign. Raises OSError if a file can't be written."""
        for event in self._happenings():
            self._standing(event)
            self._knowledge(event)
            yield event

    def _clock(self) -> float:
        return time.monotonic() - self._started

    def _left(self, share: float = 1.0) -> float:
        return max(1.0, share * (self._plan.seconds or 0.0) - self._clock())

    def _happenings(self) -> Iterator[Event]:
        yield opening(self._plan, campaign=self._name, jobs=len(TOOLS), environment=self._environment)
        for text in self._archive.troubles:
            yield Trouble(at=self._clock(), text=text)
        chosen = {name: small_cases(name, self._plan.seed) for name in self._plan.backends}
        # One of each backend first, then the others: time may end.
        cases = [case for case in chain.from_iterable(zip_longest(*chosen.values())) if case is not None]
        if not cases:
            yield Trouble(at=self._clock(), text="no backend has a case that is small enough for compute-sanitizer")
        else:
            with ThreadPoolExecutor(len(TOOLS)) as pool:
                first = pool.map(lambda tool: self._under(tool, cases, self._left(_SHARE_OF_FIRST_RUNS)), TOOLS)
                results = dict(zip(TOOLS, first, strict=True))
            for tool, result in results.items():
                yield from self._taken(tool, cases, result)
            ended = max((each.ended for each in results.values() if isinstance(each, Sanitized)), default=0)
            for name, own in chosen.items():
                yield from self._covered(name, [case for case in cases[:ended] if case in own])
        interrupted = self._stop.is_set()
        yield CampaignFinished(at=self._clock(), time=time.time(), interrupted=interrupted)

    def _under(self, tool: SanitizerTool, cases: Sequence[AnyCase], seconds: float) -> Sanitized | str:
        """Run cases under a tool; the reason if it can't."""
        try:
            return self._run(tool, cases, seconds=seconds, contract=self._plan.contract, stop=self._stop)
        except NotSanitized as reason:
            return str(reason)

    def _covered(self, backend: str, cases: Sequence[AnyCase]) -> Iterator[Event]:
        """Report the cases of a backend that ran, and their pairs of features."""
        if not cases:
            return
        yield Progress(at=self._clock(), backend=backend, tally=Tally(searched=len(cases), cases=len(cases)))
        bits = 0
        for case in cases:
            bits |= family_of(case).pair_bits(case)
        if bits:
            pairs = family_of(cases[0]).space.pairs_in(bits)
            yield CoverageGrew(at=self._clock(), backend=backend, searched=len(cases), pairs=pairs)

    def _taken(self, tool: SanitizerTool, cases: Sequence[AnyCase], result: Sanitized | str) -> Iterator[Event]:
        """Confirm and file the failures of the first runs under a tool."""
        if isinstance(result, str):
            yield Trouble(at=self._clock(), text=result)
            return
        if result.why_not_all:
            text = f"{tool}: {result.ended} of {len(cases)} cases ran: {result.why_not_all}"
            yield Trouble(at=self._clock(), text=text)
        found = list(_new(tool, cases, result))
        if not found or self._stop.is_set():
            return
        again = [cases[each.number] for each in found]
        second = self._under(tool, again, self._left())
        for place, each in enumerate(found):
            reports = () if isinstance(second, str) else second.reports[place]
            like = _like(each.observation, observations(reports, tool))
            yield from self._settled(cases[each.number], each.observation, confirmed=like is not None)

    def _settled(self, case: AnyCase, observation: Observation, *, confirmed: bool) -> Iterator[Event]:
        fingerprint = Fingerprint.of(case.backend, observation)
        if not confirmed:
            yield self._filing.keep(Suspect(fingerprint=fingerprint, case=case, observation=observation), NOT_COME_BACK)
            return
        verdict = Verdict(observations=(observation,))
        filed = self._filing.file(
            Caught(
                fingerprint=fingerprint, first=case, case=case, observation=observation, verdict=verdict, ablated=False
            )
        )
        yield filed
        if isinstance(filed, FindingFiled):
            self._archive.add_script(filed.name, None, _NO_SCRIPT)
            yield ScriptMade(at=self._clock(), name=filed.name, kept=False, obstacle=_NO_SCRIPT)


def small_cases(backend: str, seed: int) -> list[AnyCase]:
    """Choose small cases of a backend, each time the drawn one with the most pairs of features that are new."""
    drawn: list[AnyCase] = []
    until = time.monotonic() + _SECONDS_TO_CHOOSE

    class Over(Exception):
        """Raised when the time is over."""

    def visit(case: AnyCase) -> None:
        if time.monotonic() > until:
            raise Over
        if is_small(case):
            drawn.append(case)

    with suppress(Over):
        seed_of = derive_seed(seed, backend, "sanitize")
        run_examples(drawn_cases(backend), visit, examples=_EXAMPLES, seed_of=seed_of)
    return chosen_for_pairs(drawn, _MOST_OF_A_BACKEND)


def chosen_for_pairs(cases: Sequence[AnyCase], most: int) -> list[AnyCase]:
    """Return up to `most` cases, each time the one with the most pairs of features that the others lack."""
    left = [(case, family_of(case).pair_bits(case)) for case in cases]
    chosen: list[AnyCase] = []
    covered = 0
    while left and len(chosen) < most:
        best = max(range(len(left)), key=lambda index: (left[index][1] & ~covered).bit_count())
        case, bits = left.pop(best)
        if chosen and not bits & ~covered:
            break
        covered |= bits
        chosen.append(case)
    return chosen


def is_small(case: AnyCase) -> bool:
    """Return whether a case has few tokens and keys."""
    if not isinstance(case, Case):
        return True
    return all(
        step.padded_tokens <= _MOST_TOKENS and sum(request.kv_len for request in step.requests) <= _MOST_KEYS
        for step in case.steps
    )


def _new(tool: SanitizerTool, cases: Sequence[AnyCase], result: Sanitized) -> Iterator[_Found]:
    """Yield the first failure of each backend, kind, kernel and place. In another mode it is most likely the same."""
    seen: set[tuple[str, Kind, str, str]] = set()
    for index, reports in enumerate(result.reports):
        for observation in observations(reports, tool):
            key = cases[index].backend, observation.kind, observation.kernel, observation.place
            if key not in seen:
                seen.add(key)
                yield _Found(index, observation)


def _like(one: Observation, others: Sequence[Observation]) -> Observation | None:
    wanted = one.kind, one.kernel, one.place
    return next((each for each in others if (each.kind, each.kernel, each.place) == wanted), None)
