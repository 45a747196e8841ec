"""Sweep all releases in order: run the known failures in each, search each, and run new failures in all."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from attnfuzz.harness.findings.archive import read_records
from attnfuzz.harness.releases.outcomes import Ending
from attnfuzz.harness.releases.replaying import CANNOT_BE_JUDGED, reason_of, replayed
from attnfuzz.harness.releases.results import Cell, FailureRow, Searched, SweepResults, with_resemblances
from attnfuzz.harness.releases.wanted import Wanted, file_name, found
from attnfuzz.harness.sandbox.case_runner import RepeatingRunner
from attnfuzz.kernels.interface.engine import Engine
from attnfuzz.reference import case_file


class StartableRunner(RepeatingRunner, Protocol):
    """A runner that checks beforehand whether a backend can be run."""

    def start(self, backend: str) -> None:
        """Prepare for a backend. Raises one of CANNOT_BE_JUDGED."""
        ...


Search = Callable[[tuple[str, ...]], Searched]
"""Searches the backends of a release, and files findings in the sweep's home."""


class Sweep:
    """A sweep, new or resumed from `results`.

    `runners` makes a runner per release, since workers that have loaded one can't run another. Searches file into the
    folder `findings`; failing cases are kept in `cases`. `tell` gets a line of progress.
    """

    def __init__(
        self,
        results: SweepResults,
        engine: Engine,
        known: Iterable[Wanted],
        *,
        runners: Callable[[], AbstractContextManager[StartableRunner]],
        search: Search,
        findings: Path,
        cases: Path,
        tell: Callable[[str], None],
    ) -> None:
        self._asked = results.asked
        self._environment = results.environment
        self._searched = dict(results.searched)
        self._unable: dict[str, str] = {}
        self._known = tuple(known)
        self._cells: dict[str, dict[str, Cell]] = {}
        self._engine, self._runners, self._search = engine, runners, search
        self._findings, self._cases, self._tell = findings, cases, tell
        self._backends = {
            engine.backend(release, kind): (release, kind)
            for release in self._asked.releases
            for kind in self._asked.kinds
        }

    @property
    def results(self) -> SweepResults:
        """The results so far."""
        found = {wanted.name: wanted for wanted in self._found()}
        known = [
            replace(wanted, found=found.pop(wanted.name).found) if wanted.name in found else wanted
            for wanted in self._known
        ]
        rows = (FailureRow(wanted=wanted, cells=self._in_order(wanted)) for wanted in (*known, *found.values()))
        return SweepResults(
            asked=self._asked,
            environment=self._environment,
            searched={
                release: self._searched[release] for release in self._asked.releases if release in self._searched
            },
            unable=self._unable,
            rows=with_resemblances(tuple(rows)),
        )

    def run(self) -> Iterator[SweepResults]:
        """Run it; yield the results after each release. Ends early if a search is interrupted."""
        for release in self._asked.releases:
            able = self._replay(release, self._known)
            before = self._searched.get(release)
            if able and self._asked.searches and not (before and before.complete):
                self._searched[release] = self._searched_for(able)
                if self._searched[release].interrupted:
                    yield self.results
                    return
            yield self.results
        known = {wanted.name for wanted in self._known}
        news = [wanted for wanted in self._found() if wanted.name not in known]
        for release in self._asked.releases if news else ():
            self._replay(release, news)
            yield self.results

    def _searched_for(self, backends: tuple[str, ...]) -> Searched:
        self._tell(f"Searching {', '.join(backends)}")
        try:
            return self._search(backends)
        except CANNOT_BE_JUDGED as error:
            return Searched(examples=0, cases=0, campaign="", failure=f"the search failed: {reason_of(error)}")

    def _found(self) -> list[Wanted]:
        return found(read_records(self._findings)[0], self._backends)

    def _in_order(self, wanted: Wanted) -> dict[str, Cell]:
        cells = self._cells.get(wanted.name, {})
        return {release: cells[release] for release in self._asked.releases if release in cells}

    def _replay(self, release: str, all_wanted: Iterable[Wanted]) -> tuple[str, ...]:
        """Run these failures in a release; return its backends that can be run."""
        able: dict[str, str] = {}
        with self._runners() as runner:
            for kind in self._asked.kinds:
                backend = self._engine.backend(release, kind)
                try:
                    runner.start(backend)
                except CANNOT_BE_JUDGED as error:
                    self._unable[backend] = reason_of(error, backend)
                    self._tell(f"{backend} can't run: {self._unable[backend]}")
                else:
                    self._unable.pop(backend, None)
                    able[kind] = backend
            for wanted in all_wanted:
                cell = self._cell(wanted, release, able.get(wanted.kind), runner)
                self._cells.setdefault(wanted.name, {})[release] = cell
                if wanted.kind in able:
                    self._tell(f"{release} {cell.ending}: {wanted.name}{f', {cell.line}' if cell.line else ''}")
        return tuple(able.values())

    def _cell(self, wanted: Wanted, release: str, backend: str | None, runner: RepeatingRunner) -> Cell:
        if backend is None:
            reason = self._unable[self._engine.backend(release, wanted.kind)]
            return Cell(ending=Ending.CANNOT_BE_HAD, line=reason)
        try:
            seen = replayed(wanted, backend, runner)
        except CANNOT_BE_JUDGED as error:
            return Cell(ending=Ending.CANNOT_RUN, line=reason_of(error))
        kept = ""
        if seen.case is not None:
            path = self._cases / file_name(wanted, release)
            self._cases.mkdir(parents=True, exist_ok=True)
            case_file.save(path, seen.case)
            kept = str(path)
        return Cell(ending=seen.ending, line=seen.line, case=kept, fingerprint=seen.fingerprint)
