"""What triage says of a case: a conclusion, the sentences that lead to it, and how each variant ended."""

from enum import StrEnum

import msgspec

from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict


class Blame(StrEnum):
    """Whose fault it is: of who made the call (a planner, a server), of the kernel, unknown, or nothing fails."""

    CALLER = "caller"
    KERNEL = "kernel"
    UNCLEAR = "unclear"
    NONE = "none"


class Repetition(StrEnum):
    """What running the very same case again and again gave. HISTORY: it depends on what the process ran before."""

    DETERMINISTIC = "deterministic"
    RACING = "racing"
    HISTORY = "depends on the process"
    UNKNOWN = "not repeated"


class VariantOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one way to run a case ended, in all of its `runs`, of which `failed` did; `failure` is the first one's worst.

    `unanswered` counts its rows without a right answer. `reason` says why it was not run, where it was not.
    """

    runs: int = 0
    failed: int = 0
    failure: Observation | None = None
    unanswered: int = 0
    reason: str = ""

    @classmethod
    def of(cls, *verdicts: Verdict) -> "VariantOutcome":
        """That of these runs."""
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
        """What it failed with."""
        return self.failure.kind if self.failure is not None else None


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run a case: what is varied ("guard"), to what ("left"), and how that ended."""

    what: str
    value: str
    outcome: VariantOutcome


class Triage(msgspec.Struct, frozen=True, kw_only=True):
    """A case's triage.

    `sentences` say why `fault` is the conclusion, the most important first. `breaches` are the preconditions that the
    failing call breaks, `step` and `call` the first bad ones (-1 if unknown), `arguments` those that the failure
    follows from. `missing` are the tools that could have said more, and why they did not.
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
    tools: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def fails(self) -> bool:
        """Whether any variant failed."""
        return self.fault is not Blame.NONE
