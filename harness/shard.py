"""One share of a fuzz test: pytest-xdist runs a test on one worker, so a fuzz test is split into seeded shards."""

import warnings
from dataclasses import dataclass

from attnfuzz.harness.campaign.draw import drawn_cases
from attnfuzz.harness.campaign.examples import derive_seed
from attnfuzz.harness.campaign.hunt import Hunt
from attnfuzz.harness.campaign.messages import AnyMessage, Caught, Lost, Slice
from attnfuzz.harness.check import CASES, render_failure, shared_runner
from attnfuzz.harness.findings import Finding
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Guard


class UnconfirmedFailure(UserWarning):
    """A case failed, but not again in a fresh worker."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Shard number `index` of a fuzz test of `backend`: so many `examples`, drawn with a seed that follows from `seed`.

    `guard` is the edge that is guarded, by name; None is either.
    """

    backend: str
    index: int
    examples: int
    seed: int
    guard: str | None = None

    def failures(self) -> list[str]:
        """Search the shard; what was found, each once, as text that ends in a line to replay it."""
        guard = None if self.guard is None else Guard(self.guard)
        messages: list[AnyMessage] = []
        task = Slice(
            backend=self.backend,
            index=self.index,
            seed=derive_seed(self.seed, self.backend, self.index),
            examples=self.examples,
        )
        Hunt(task, shared_runner(), messages.append).run(drawn_cases(self.backend, guard))
        for message in messages:
            if isinstance(message, Lost):
                kind, place = message.fingerprint.kind, message.fingerprint.place
                warnings.warn(f"unconfirmed: {kind} at {place} in {self.backend}", UnconfirmedFailure, stacklevel=2)
        findings = [_finding(message) for message in messages if isinstance(message, Caught)]
        return [_leave(finding) for finding in {finding.name: finding for finding in reversed(findings)}.values()]


def _finding(caught: Caught) -> Finding:
    report = render_failure(caught.case, caught.verdict)
    return Finding(case=caught.case, first=caught.first, observation=caught.observation, report=report)


def _leave(finding: Finding) -> str:
    """Save the case and say how to replay it."""
    CASES.mkdir(exist_ok=True)
    path = CASES / f"{finding.name}.json"
    case_file.save(path, finding.case)
    return f"{finding.report}\n\nreplay: attnfuzz replay {path}"
