"""`attnfuzz sweep`: failures by release, those that are reported and those that a search of each release finds."""

import shlex
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from attnfuzz.harness.backends.engines import engine_named, engine_names
from attnfuzz.harness.campaign.closing import unjudged
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.plan import ALPHA, Plan, spent_per_output
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.cli.campaign import run_campaign
from attnfuzz.harness.cli.given import EngineTree, Trees, tree_of
from attnfuzz.harness.cli.releases.answers import Swept, SweptFailure, SweptRelease
from attnfuzz.harness.cli.releases.commands import EXAMPLES
from attnfuzz.harness.cli.releases.sweep_table import print_sweep
from attnfuzz.harness.cli.terminal import BadInput, Exit, Terminal, answer, details, print_line, tell
from attnfuzz.harness.files.durable import write_durably
from attnfuzz.harness.findings.environment import environment
from attnfuzz.harness.releases.replaying import MOST_CASES
from attnfuzz.harness.releases.results import (
    RESULTS,
    FailureRow,
    Searched,
    SweepPlan,
    SweepResults,
    read_results,
    write_results,
)
from attnfuzz.harness.releases.sweep import Sweep
from attnfuzz.harness.releases.versions import versions_in
from attnfuzz.harness.releases.wanted import Wanted, given, reported
from attnfuzz.harness.releases.words import MARKDOWN, render_markdown
from attnfuzz.harness.report.verdict import why_idle
from attnfuzz.harness.reported.bugs import load_bugs
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.wording import count
from attnfuzz.kernels.interface.engine import Engine

_MOST_CHARACTERS = 160
"""Maximum length of a line of progress; the files have the whole text."""


def sweep(
    *,
    package: str | None,
    versions: str | None,
    kinds: tuple[str, ...],
    examples: int | None,
    seconds: float | None,
    cases: tuple[Path, ...],
    trees: Trees,
    seed: int,
    jobs: int,
    home: Path,
) -> Exit:
    """Run known failures in releases, search each release for others, and return the exit code."""
    engine = _engine(package)
    kinds = _kinds(kinds, engine)
    known = _given(cases, engine, kinds)
    asked = SweepPlan(
        package=engine.name,
        releases=_releases(versions, tree_of(trees), engine),
        kinds=kinds,
        examples=None if examples == 0 else EXAMPLES if examples is None and seconds is None else examples,
        seconds=seconds,
        seed=seed,
        jobs=jobs,
        given=known,
    )
    if (home / RESULTS).exists():
        tell(f"{home / RESULTS} is from an earlier sweep and is overwritten; its findings are kept.")
    begun = SweepResults(asked=asked, environment=environment())
    write_results(home, begun)
    return _run(begun, home)


def resume_sweep(home: Path) -> Exit:
    """Continue the sweep of a home, and return the exit code."""
    return _run(read_results(home), home)


def _run(results: SweepResults, out: Path) -> Exit:
    """Run a sweep, or the rest of it; write the results after each release, and print them at the end."""
    engine = _engine(results.asked.package)
    home = Home(out)
    with Runner() as runner:
        known = (*reported(load_bugs(), engine, results.asked.kinds, runner), *results.asked.given)
    outputs = (len(known) + 1) * len(results.asked.releases) * MOST_CASES
    interrupted = True
    going = Sweep(
        results,
        engine,
        known,
        runners=partial(Runner, alpha=spent_per_output(ALPHA, outputs), progress=tell),
        search=partial(_search, results.asked, out),
        findings=home.findings,
        cases=out / "cases",
        tell=lambda line: tell(line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 1]}…"),
    )
    try:
        for known_now in going.run():
            results = known_now
            _write(results, engine, out)
            interrupted = any(each.interrupted for each in results.searched.values())
    except KeyboardInterrupt:
        results, interrupted = going.results, True
        _write(results, engine, out)
    answer(_swept(results, engine, interrupted=interrupted))
    print_sweep(details(), Terminal(), results, engine)
    print_line(details(), f"Table: {out / MARKDOWN}, {out / RESULTS}")
    if interrupted:
        again = f"attnfuzz sweep --resume --home {shlex.quote(str(out))}"
        print_line(details(), f"Interrupted. Findings so far are kept; continue with: {again}")
        return Exit.INTERRUPTED
    if not results.judged:
        return Exit.FAILED
    return Exit.FOUND if results.fails else Exit.CLEAN


def _search(asked: SweepPlan, out: Path, backends: tuple[str, ...]) -> Searched:
    """Run a campaign in the sweep's home, which keeps its findings."""
    campaign, standing = run_campaign(
        Plan(
            backends=backends,
            examples=asked.examples,
            seconds=asked.seconds,
            seed=asked.seed,
            jobs=asked.jobs,
            contract="declared",
            guard=None,
            out=out,
        )
    )
    return Searched(
        examples=sum(score.tally.searched for score in standing.scores.values()),
        cases=standing.runs,
        campaign=campaign,
        refused=dict(sum((score.unsupported for score in standing.scores.values()), Counter[str]())),
        interrupted=standing.finished is not None and standing.finished.interrupted,
        failure=_failure(standing),
    )


def _failure(standing: Standing) -> str:
    """State why a search does not count as complete; empty if it does."""
    if standing.failure is not None and standing.failure.fixable:
        return standing.failure.text
    if standing.failure is not None:
        # The last line states how the job's process ended; the one before it is its last line of output.
        lines = [line for line in standing.failure.text.splitlines() if line.strip()]
        return f"the search failed: {next(iter([*lines[-2:-1], *lines]), 'no reason given')}"
    if standing.idle:
        return f"no case was judged: {why_idle(standing, more='allow more time')}"
    if standing.unsettled:
        return f"{count(len(standing.unsettled), 'suspect')} not confirmed"
    return "; ".join(unjudged(standing))


def _swept(results: SweepResults, engine: Engine, *, interrupted: bool) -> Swept:
    releases = []
    for release in results.asked.releases:
        backends = {engine.backend(release, kind) for kind in results.asked.kinds}
        searched = results.searched.get(release)
        unable = {backend: reason for backend, reason in results.unable.items() if backend in backends}
        drawn = None if searched is None else searched.examples
        releases.append(SweptRelease(release=release, drawn=drawn, unable=unable))
    return Swept(
        engine=engine.name,
        interrupted=interrupted,
        releases=tuple(releases),
        failures=tuple(map(_swept_failure, results.rows)),
    )


def _swept_failure(row: FailureRow) -> SweptFailure:
    return SweptFailure(
        name=row.wanted.name,
        title=row.wanted.title,
        backend=row.wanted.kind,
        outcomes={release: cell.ending for release, cell in row.cells.items()},
        began=row.course.began,
        ended=row.course.ended,
        found_in=row.wanted.found,
        cases={release: cell.case for release, cell in row.cells.items() if cell.case},
    )


def _write(results: SweepResults, engine: Engine, out: Path) -> None:
    write_results(out, results)
    write_durably(out / MARKDOWN, render_markdown(results, engine).encode())


def _engine(package: str | None) -> Engine:
    engine = engine_named(package or "")
    if engine is None:
        asked = "no engine" if package is None else f"no releases of {package!r} are known"
        first, *others = engine_names()
        more = f", or give {' or '.join(others)}" if others else ""
        raise BadInput(f"{asked}: write it like attnfuzz sweep {first} VERSION..latest{more}")
    return engine


def _kinds(named: Sequence[str], engine: Engine) -> tuple[str, ...]:
    for name in named:
        if name not in engine.kinds:
            raise BadInput(f"--backend {name}: of releases of {engine.name}, give {' or '.join(engine.kinds)}")
    return tuple(dict.fromkeys(named)) or engine.default_kinds


def _releases(versions: str | None, tree: EngineTree | None, engine: Engine) -> tuple[str, ...]:
    if versions is None and tree is None:
        raise BadInput("no versions: write them like 0.5.9..latest or 0.5.9,0.5.11")
    named = [] if versions is None else versions_in(versions, engine.released)
    return (*map(str, named), *([] if tree is None else [f"@{tree.path.resolve()}"]))


def _given(paths: Sequence[Path], engine: Engine, kinds: Sequence[str]) -> tuple[Wanted, ...]:
    """Return the failures in files and folders, each with a unique name."""
    taken: dict[str, Wanted] = {}
    for path in dict.fromkeys(paths):
        wanted = given(path, engine, kinds)
        name, number = wanted.name, 1
        while name in taken:
            number += 1
            name = f"{wanted.name}-{number}"
        taken[name] = replace(wanted, name=name)
    return tuple(taken.values())
