"""The result of triage: a conclusion, the sentences for it, and the outcome of each variant."""

from enum import StrEnum

import msgspec

from attnfuzz.harness.verdict.blame import Blame
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict


class Repetition(StrEnum):
    """The result of repeating a case. HISTORY: it depends on earlier cases of the process."""

    DETERMINISTIC = "deterministic"
    RACING = "racing"
    HISTORY = "depends on the process"
    UNKNOWN = "not repeated"


class VariantOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one way to run a case: `failed` of its `runs`; `failure` is the worst of the first failing run.

    `unanswered` counts its rows without a right answer. `reason` is set if it was not run.
    """

    runs: int = 0
    failed: int = 0
    failure: Observation | None = None
    unanswered: int = 0
    reason: str = ""

    @classmethod
    def of(cls, *verdicts: Verdict) -> "VariantOutcome":
        """Return the outcome of these runs."""
        rejected = next((verdict.unsupported for verdict in verdicts if verdict.unsupported is not None), None)
        if rejected is not None:
            return cls(reason=rejected)
        failures = [verdict.failures[0] for verdict in verdicts if verdict.failures]
        return cls(
            runs=len(verdicts),
            failed=len(failures),
            failure=failures[0] if failures else None,
            unanswered=max((verdict.unanswered for verdict in verdicts), default=0),
        )

    @property
    def passes(self) -> bool:
        """Whether it was run, and never failed."""
        return self.runs > 0 and not self.failed

    @property
    def kind(self) -> Kind | None:
        """The kind of its failure."""
        return self.failure.kind if self.failure is not None else None


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run a case: the variation ("guard"), its value ("left"), and the outcome."""

    what: str
    value: str
    outcome: VariantOutcome


class Triage(msgspec.Struct, frozen=True, kw_only=True):
    """The triage of a case.

    `sentences` support the conclusion `fault`, the most important first. `breaches` are the preconditions that the
    failing call breaks, `step` and `call` the first bad ones (-1 if unknown), `arguments` those that cause the failure.
    """

    case: str
    backend: str
    fault: Blame
    conclusion: str
    sentences: tuple[str, ...] = ()
    breaches: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    repetition: Repetition = Repetition.UNKNOWN
    step: int = -1
    call: int = -1
    kernel: str = ""
    failure: Observation | None = None
    variants: tuple[Variant, ...] = ()

    @property
    def fails(self) -> bool:
        """Whether any variant failed."""
        return self.fault is not Blame.NONE
