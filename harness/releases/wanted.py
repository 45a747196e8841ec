"""The failures to look for in every release: a case, and the matching failures."""

import re
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from attnfuzz.harness.findings.finding import case_path
from attnfuzz.harness.findings.record import HISTORY, Record, read_history
from attnfuzz.harness.reported.bugs import Bug
from attnfuzz.harness.sandbox.case_runner import RepeatingRunner
from attnfuzz.harness.verdict.failures import FAULTS, Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint, fine
from attnfuzz.harness.verdict.wording import headline
from attnfuzz.kernels.interface.engine import Engine
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.user_error import UserError

_PLACED = FAULTS | {Kind.RAISED}
"""Kinds of failures whose place matters: elsewhere, it is another bug."""


class NotOfTheEngine(UserError):
    """A case that doesn't apply to the engine; the message says why."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A failure to look for with `case`, on the backend of this `kind` of each release.

    A failure matches if it is of one of `kinds`, or like `fingerprint`, which names no backend; any does if neither is
    given. If `where` is given, a fault matches in that kernel alone, and an exception of that type. `reported`: its
    case may be moved into a geometry of the release, since the report is not about the geometry. `found` are the
    releases whose search found it.
    """

    name: str
    title: str
    kind: str
    case: AnyCase
    kinds: tuple[Kind, ...] = ()
    where: str = ""
    fingerprint: Fingerprint | None = None
    reported: bool = False
    found: tuple[str, ...] = ()

    def shown_by(self, verdict: Verdict) -> Observation | None:
        """Return the first matching failure of a verdict; None if there is none."""
        if self.fingerprint is not None:
            return self.fingerprint.among(verdict.failures)
        return next((each for each in verdict.failures if self._matches(each)), None)

    def _matches(self, failure: Observation) -> bool:
        elsewhere = self.where and _where(failure) not in {"", self.where}
        return not elsewhere and (not self.kinds or failure.kind in self.kinds)


def fingerprint_anywhere(observation: Observation) -> Fingerprint:
    """Return the fingerprint of a failure without its backend, the same in every release."""
    return Fingerprint.of("", observation).anywhere


def reported(bugs: Iterable[Bug], engine: Engine, kinds: Collection[str], runner: RepeatingRunner) -> list[Wanted]:
    """List the engine's reports that a case shows on this machine; in a release's form, if one is known.

    For a report about a fault or an exception, `runner` finds its place in our own backend.
    """
    return [
        Wanted(
            name=bug.name,
            title=bug.title,
            kind=kind,
            case=case,
            kinds=bug.kinds,
            where=_where_ours(bug, runner),
            reported=True,
        )
        for bug in bugs
        for case in [bug.case_in_release or bug.case]
        if bug.project == engine.name and bug.missing is None and case is not None and case.searchable
        for kind in [engine.kind_of(bug.release or bug.backend_before)]
        if kind is not None and kind in kinds
    ]


def _where_ours(bug: Bug, runner: RepeatingRunner) -> str:
    """Run a bug on our own backend. Returns the place at which that fails, "" if it does not matter."""
    if bug.case is None or not bug.case.searchable or _PLACED.isdisjoint(bug.kinds):
        return ""
    failures = runner.verdict(bug.case_before).failures
    return next((_where(each) for each in failures if each.kind in _PLACED.intersection(bug.kinds)), "")


def _where(failure: Observation) -> str:
    """Return the place that distinguishes failures of a kind: a fault's kernel, an exception's type, else ""."""
    if failure.kind in FAULTS:
        return failure.kernel
    return failure.place if failure.kind is Kind.RAISED else ""


def given(path: Path, engine: Engine, kinds: Collection[str]) -> Wanted:
    """Read the failure of a user's file or finding, or any. Raises CaseFileError, RecordError, NotOfTheEngine."""
    case = case_file.load(case_path(path))
    if not case.searchable:
        raise NotOfTheEngine(f"{path} is made of literal calls, which no release plans: give a case made of steps")
    kind = engine.kind_of(case.backend)
    if kind is None or kind not in kinds:
        have = ", ".join(kinds)
        raise NotOfTheEngine(f"{path} is a case of {case.backend}: a sweep of {engine.name} replays those of {have}")
    if (path / HISTORY).is_file():
        return _on_file(case, kind, read_history(path).observation)
    return Wanted(name=path.stem, title=f"any failure of {path}", kind=kind, case=case)


def found(records: Iterable[Record], backends: dict[str, tuple[str, str]]) -> list[Wanted]:
    """List the findings of searches for `backends`, each with its release and kind, in the order of releases.

    The same failure with the same features in several releases is one, with the case of the first of them.
    """
    order = list(backends)
    mine = sorted(
        (record for record in records if record.case.backend in backends),
        key=lambda record: order.index(record.case.backend),
    )
    alike: dict[str, Wanted] = {}
    for record in mine:
        release, kind = backends[record.case.backend]
        wanted = _on_file(record.case, kind, record.observation)
        first = alike.setdefault(wanted.name, wanted)
        alike[wanted.name] = replace(first, found=tuple(dict.fromkeys((*first.found, release))))
    return list(alike.values())


def _on_file(case: AnyCase, kind: str, seen: Observation) -> Wanted:
    """Make the failure of a finding; its name doesn't depend on the release."""
    return Wanted(
        name=f"{seen.kind}-{fine(case.having(backend=kind), seen)}",
        title=headline(kind, seen),
        kind=kind,
        case=case,
        fingerprint=fingerprint_anywhere(seen),
    )


def file_name(wanted: Wanted, release: str) -> str:
    """Return the file name of a failing case."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", f"{wanted.name}-{release.strip('@/')}") + ".json"
