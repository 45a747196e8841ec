"""One share of a fuzz test: pytest-xdist runs a test on one worker, so fuzz tests are split into seeded shards."""

import fcntl
import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.campaign.schedule import EXAMPLES_PER_SLICE
from attnfuzz.harness.findings.finding import Finding
from attnfuzz.harness.findings.ledger import Ledger
from attnfuzz.harness.pytest.found import Found
from attnfuzz.harness.sandbox.case_runner import RepeatingRunner
from attnfuzz.harness.sandbox.check import CASES, render_failure, shared_runner
from attnfuzz.harness.search.examples import derive_seed, drawn_cases
from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.messages import AnyMessage, Caught, Lost, Slice
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case, Guard


class _Claim(msgspec.Struct, frozen=True):
    fingerprint: Fingerprint
    name: str
    test: str


class Claims:
    """Failures that the tests of a run report, in a file in `folder` made by the first; `test` is the caller's name.

    A test that is run again claims its failures again.
    """

    def __init__(self, folder: Path, test: str) -> None:
        self._folder = folder
        self._test = test

    def claim(self, fingerprint: Fingerprint, name: str) -> bool:
        """Whether this test reports the finding `name`: no other has claimed its name or fingerprint."""
        with self._locked() as file:
            for other in self._read(file):
                if other.name == name or other.fingerprint.anywhere == fingerprint.anywhere:
                    return False
            file.write(msgspec.json.encode(_Claim(fingerprint, name, self._test)) + b"\n")
        return True

    def of_others(self) -> set[Fingerprint]:
        """The fingerprints claimed by other tests."""
        with self._locked() as file:
            return {claim.fingerprint for claim in self._read(file)}

    def _read(self, file: BinaryIO) -> list[_Claim]:
        """Other tests' claims."""
        file.seek(0)
        # A killed process may leave half a line, joined with the next one: both bugs are then reported again.
        claims = []
        for line in file:
            with suppress(msgspec.DecodeError):
                claims.append(msgspec.json.decode(line, type=_Claim))
        return [claim for claim in claims if claim.test != self._test]

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with (self._folder / "claims.ndjson").open("a+b") as file:
            # Closing the file flushes it and releases the lock.
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file


class UnconfirmedFailure(UserWarning):
    """A case failed, but not again in a fresh worker."""


@dataclass(frozen=True)
class ShardFailure:
    """A shard's finding: `text` ends in a line that replays it. `known` is the ledger's reason, if any."""

    name: str
    text: str
    known: str | None


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Shard number `index` of a fuzz test of `backend`, drawn with a seed that follows from `seed`.

    Its budget is a number of `examples` or of `seconds`; the other is infinite. `guard` is the guarded edge, by name;
    None is either.
    """

    backend: str
    index: int
    seed: int
    examples: float = math.inf
    seconds: float = math.inf
    guard: str | None = None

    def failures(
        self,
        runner: RepeatingRunner,
        *,
        ledger: Ledger,
        claims: Claims,
        explained: Callable[[Case, Verdict], Verdict] = lambda _, verdict: verdict,
    ) -> list[ShardFailure]:
        """Search the shard in slices, like a campaign; return the findings.

        `explained` adds explanations to a failure's verdict. Other shards' failures are skipped, like known and
        unconfirmed ones.
        """
        strategy = drawn_cases(self.backend, None if self.guard is None else Guard(self.guard))
        found: list[ShardFailure] = []
        settled: set[Fingerprint] = set()
        left = self.examples
        for index, seconds in enumerate(self._remaining_seconds()):
            if left <= 0 or seconds <= 0:
                break
            task = Slice(
                backend=self.backend,
                index=index,
                seed=derive_seed(self.seed, self.backend, self.index, index),
                examples=int(min(EXAMPLES_PER_SLICE, left)),
                known=tuple(settled | claims.of_others()),
                seconds=None if math.isinf(seconds) else seconds,
            )
            messages: list[AnyMessage] = []
            capability = resolve(self.backend).capability
            hunt = Hunt(
                task, runner, messages.append, capability=capability, explained=explained, ledger=ledger.entries
            )
            done = hunt.run(strategy)
            left -= done.tally.searched if done.stopped_early else task.examples
            for message in messages:
                if isinstance(message, Caught):
                    settled.add(message.fingerprint)
                    shown = {failure.name for failure in found}
                    found += (each for each in _claimed(message, ledger, claims) if each.name not in shown)
                elif isinstance(message, Lost):
                    lost = message.fingerprint
                    settled.add(lost)
                    text = f"unconfirmed: {lost.kind} at {lost.place} in {lost.backend}"
                    warnings.warn(text, UnconfirmedFailure, stacklevel=2)
        return found

    def _remaining_seconds(self) -> Iterator[float]:
        started = time.monotonic()
        while True:
            yield self.seconds - (time.monotonic() - started)


@dataclass(frozen=True)
class ShardSearch:
    """The search of a shard on the process's workers; `claims` are those of its test."""

    shard: Shard
    ledger: Ledger
    claims: Claims

    def found(self) -> Found:
        """Search it."""
        runner = shared_runner()
        failures = self.shard.failures(runner, ledger=self.ledger, claims=self.claims, explained=runner.explained)
        return Found(
            new=[failure.text for failure in failures if failure.known is None],
            known=[f"known: {failure.name}: {failure.known}" for failure in failures if failure.known is not None],
            again=f"The same search: --attn-backend {self.shard.backend} --attn-seed {self.shard.seed}",
        )


def _claimed(caught: Caught, ledger: Ledger, claims: Claims) -> list[ShardFailure]:
    """Report the caught failure and save its case, unless another shard reports it."""
    report = render_failure(caught.case, caught.verdict)
    if caught.recurrence is not None:
        report = f"{caught.recurrence.words}\n\n{report}"
    finding = Finding(case=caught.case, first=caught.first, observation=caught.observation, report=report)
    if not claims.claim(caught.fingerprint, finding.name):
        return []
    CASES.mkdir(exist_ok=True)
    path = CASES / f"{finding.name}.json"
    case_file.save(path, finding.case)
    known = ledger.reason(caught.fingerprint, caught.case, finding.name)
    return [ShardFailure(finding.name, f"{report}\n\nreplay: attnfuzz replay {path}", known)]
