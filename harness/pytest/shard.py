"""One share of a fuzz test: pytest-xdist runs a test on one worker, so a fuzz test is split into seeded shards."""

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.campaign.schedule import EXAMPLES_PER_SLICE
from attnfuzz.harness.findings.finding import Finding
from attnfuzz.harness.findings.ledger import Ledger
from attnfuzz.harness.pytest.claims import Claims
from attnfuzz.harness.sandbox.case_runner import CaseRunner
from attnfuzz.harness.sandbox.check import CASES, render_failure
from attnfuzz.harness.search.draw import drawn_cases
from attnfuzz.harness.search.examples import derive_seed
from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.messages import AnyMessage, Caught, Lost, Slice
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case, Guard


class UnconfirmedFailure(UserWarning):
    """A case failed, but not again in a fresh worker."""


@dataclass(frozen=True)
class ShardFailure:
    """What a shard found: `text` ends in a line that replays it. `known` is why, if the ledger has it."""

    name: str
    text: str
    known: str | None


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Shard number `index` of a fuzz test of `backend`, drawn with a seed that follows from `seed`.

    Its budget is so many `examples`, or so many `seconds`; the other is infinite. `guard` is the edge that is guarded,
    by name; None is either.
    """

    backend: str
    index: int
    seed: int
    examples: float = math.inf
    seconds: float = math.inf
    guard: str | None = None

    def failures(
        self,
        runner: CaseRunner[Case],
        *,
        ledger: Ledger,
        claims: Claims,
        explained: Callable[[Case, Verdict], Verdict] = lambda _, verdict: verdict,
    ) -> list[ShardFailure]:
        """Search the shard in slices, as a campaign does; what was found, but for what other shards show.

        `explained` adds what explains a failure to its verdict. What other shards show is passed over, like what was
        found before and what did not come back.
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
            done = Hunt(task, runner, messages.append, capability=capability, explained=explained).run(strategy)
            left -= done.searched if done.stopped_early else task.examples
            for message in messages:
                if isinstance(message, Caught):
                    settled.add(message.fingerprint)
                    shown = {failure.name for failure in found}
                    found += (each for each in _claimed(message, ledger, claims) if each.name not in shown)
                elif isinstance(message, Lost):
                    settled.add(message.fingerprint)
                    warnings.warn(_unconfirmed(message.fingerprint), UnconfirmedFailure, stacklevel=2)
        return found

    def _remaining_seconds(self) -> Iterator[float]:
        started = time.monotonic()
        while True:
            yield self.seconds - (time.monotonic() - started)


def _claimed(caught: Caught, ledger: Ledger, claims: Claims) -> list[ShardFailure]:
    """What was caught, with its case saved, unless another shard shows it."""
    report = render_failure(caught.case, caught.verdict)
    finding = Finding(case=caught.case, first=caught.first, observation=caught.observation, report=report)
    if not claims.claim(caught.fingerprint, finding.name):
        return []
    CASES.mkdir(exist_ok=True)
    path = CASES / f"{finding.name}.json"
    case_file.save(path, finding.case)
    known = ledger.reason(caught.fingerprint, caught.case, finding.name)
    return [ShardFailure(finding.name, f"{report}\n\nreplay: attnfuzz replay {path}", known)]


def _unconfirmed(fingerprint: Fingerprint) -> str:
    return f"unconfirmed: {fingerprint.kind} at {fingerprint.place} in {fingerprint.backend}"
