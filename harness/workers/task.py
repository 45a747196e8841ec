"""A worker's task: a case, and how to judge it."""

import msgspec

from attnfuzz.harness.mutation.changes import Mutant
from attnfuzz.harness.verdict.tiers import ALPHA, Tier
from attnfuzz.reference.any_case import AnyCase


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for records of a run besides its verdict: its plan, and the executed lines in these `places`.

    With `parts`, the plan is recorded argument by argument. With a `mutant`, the backend's code is changed by it.
    """

    places: tuple[str, ...] = ()
    parts: bool = False
    mutant: Mutant | None = None


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A case to run, and how to judge it. `backend` runs it, whatever the case's own backend.

    `trace` is a file for its calls, in one record of all steps if it is `whole`. `alpha` is the probability that a
    correct step fails. The tiers in `without` are skipped. With `explain`, failures are explained, which takes further
    runs; with `watch`, more is recorded.
    """

    case: AnyCase
    backend: str
    strict: bool = False
    alpha: float = ALPHA
    without: tuple[Tier, ...] = ()
    trace: str | None = None
    whole: bool = False
    explain: bool = False
    watch: Watch | None = None
