"""`attnfuzz bugs`: the reported bugs, each of which must fail before its fix and pass after it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.backends.registry import WrongDevice, fixed, on_device, resolve
from attnfuzz.harness.cli.given import named
from attnfuzz.harness.cli.selftests.answers import BugResult, BugResults, Bugs, ListedBug
from attnfuzz.harness.cli.terminal import (
    BadInput,
    Exit,
    Terminal,
    answer,
    details,
    is_quiet,
    new_table,
    print_line,
    tell,
)
from attnfuzz.harness.family import family_of
from attnfuzz.harness.reported.bugs import Bug, load_bugs, projects
from attnfuzz.harness.reported.counterparts import shown_on
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.wording import count
from attnfuzz.kernels.cuda import visible
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.defects.defect import BugClass
from attnfuzz.reference.case import Case
from attnfuzz.reference.device import Device


def list_bugs(**chosen_by: Any) -> None:
    """Print the bugs that are chosen, and the backend that shows each."""
    chosen = _chosen(**chosen_by)
    answer(Bugs(bugs=tuple(map(ListedBug.of, chosen))))
    if is_quiet():
        for bug in chosen:
            print_line(Terminal(), bug.name)
        return
    table = new_table("bug", "symptom, class, and the backend that shows it", whole=("bug",))
    for bug in chosen:
        if bug.missing is None:
            shown = f"shown by {bug.shown_by}"
        else:
            shown = f"not here: {f'{bug.missing}; shown by {bug.shown_by}' if bug.reproduced else bug.why_not_here}"
        table.add_row(bug.name, Text.assemble(f"{bug.title}\n", (f"{bug.bug_class}; {shown}", "dim")))
    console = Terminal()
    console.print(table)
    here = sum(bug.missing is None for bug in chosen)
    console.print(f"\n{count(len(chosen), 'bug')}: {here} can be run here, {len(chosen) - here} can't.")


def show_bugs(*, names: tuple[str, ...]) -> None:
    """Print all facts about reported bugs: symptom, versions, sources, and the case."""
    chosen = named(names, load_bugs(), "bug")
    answer(Bugs(bugs=tuple(map(ListedBug.of, chosen))))
    for bug in chosen:
        Terminal().print(Text.assemble((bug.name, "bold"), f"  {bug.title}"))
        _print_facts(details(), bug)


def _print_facts(console: Console, bug: Bug) -> None:
    console.print(Text(f"\n{bug.symptom}\n"))
    facts = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for label, text in (
        ("class", str(bug.bug_class)),
        ("fails as", ", ".join(bug.kinds)),
        ("affected", bug.affected),
        ("fixed in", bug.fixed_in),
        ("shown by", bug.shown_by),
        ("in release", bug.release),
        ("not here", bug.missing),
        ("sources", "\n".join(bug.sources)),
    ):
        if text:
            facts.add_row(label, text)
    console.print(facts)
    if bug.case is not None:
        case = bug.case_before if bug.reproduced else bug.case
        console.print(Text("\n" + family_of(case).describe(case)))
    console.print()


def run_bugs(*, device: Device | None, releases: bool, **chosen_by: Any) -> Exit:
    """Run bugs before and after their fix, print the results, and return the exit code."""
    chosen = _chosen(**chosen_by)
    if device is Device.CUDA and (lacking := visible.missing(frozenset(Arch), ())) is not None:
        raise BadInput(f"--device cuda {lacking}")
    if releases:
        chosen, here = _in_releases(chosen, device)
    else:
        here = {bug.name: _backend(bug, device) for bug in chosen if _why_not(bug, device) is None}
    console = details()
    backends = () if releases else tuple(dict.fromkeys(each for name in here.values() for each in (name, fixed(name))))
    with Runner(backends, progress=tell) as runner:
        runs = [_run(console, runner, bug, here[bug.name], device) for bug in chosen if bug.name in here]
    console.print(_results(chosen, {run.bug.name: run for run in runs}, device))
    wrong = [run.bug.name for run in runs if not run.shown]
    print_line(console)
    print_line(Terminal(), f"{count(len(runs) - len(wrong), 'bug')} shown, {len(chosen) - len(runs)} can't run here.")
    if wrong:
        print_line(Terminal(), f"{count(len(wrong), 'bug')} not shown: {', '.join(wrong)}.", "red")
    ran = {run.bug.name for run in runs}
    answer(
        BugResults(
            bugs=tuple(map(BugResult.of, runs)), not_here=tuple(bug.name for bug in chosen if bug.name not in ran)
        )
    )
    return Exit.FOUND if wrong else Exit.CLEAN


def _in_releases(chosen: Sequence[Bug], device: Device | None) -> tuple[list[Bug], dict[str, str]]:
    """Return the bugs that a release has, and the backends that have them. Raises BadInput if there is none."""
    if device is not None:
        raise BadInput("--releases chooses the device itself: leave --device out")
    found = [bug for bug in chosen if bug.release]
    if not found:
        raise BadInput(
            "none of these bugs is in a release that can be run: attnfuzz bugs show NAME lists the sources of each"
        )
    return found, {bug.name: bug.release for bug in found}


def _why_not(bug: Bug, device: Device | None) -> str | None:
    """Return the reason why a bug can't be shown here, or is skipped on this device, as a clause; None if it is run."""
    if bug.missing is None and device is Device.CPU:
        on = resolve(_backend(bug, device)).capability.device
        return "it is in a GPU kernel, and --device cpu was given" if on is Device.CUDA else None
    return bug.missing


def _backend(bug: Bug, device: Device | None) -> str:
    """Return the backend with the bug on a device; that of its entry if there is none, or the case can't be moved."""
    if not isinstance(bug.case, Case):
        return bug.backend_before
    try:
        return on_device(bug.backend_before, device)
    except WrongDevice:
        return bug.backend_before


@dataclass(frozen=True)
class BugRun:
    """The failures of a bug on `backend`, `before` its fix and `after` it, or why it can't be run.

    `after` is None if there is no backend without the bug, called `fixed`. `remark` states which case was run, or on
    which kernels, if that differs from the bug's entry.
    """

    bug: Bug
    backend: str
    before: tuple[Observation, ...]
    after: tuple[Observation, ...] | None
    unsupported: str | None
    remark: str = ""
    fixed: str = ""

    @property
    def name(self) -> str:
        """The bug's name."""
        return self.bug.name

    @property
    def fails(self) -> bool:
        """Whether it fails before the fix, in a way that the report describes."""
        return any(failure.kind in _kinds(self.bug, self.backend) for failure in self.before)

    @property
    def passes(self) -> bool:
        """Whether it runs, and passes after the fix as far as there is one."""
        return not self.after and self.unsupported is None

    @property
    def shown(self) -> bool:
        """Whether it fails before the fix and passes after it."""
        return self.fails and self.passes


def _run(console: Console, runner: Runner, bug: Bug, backend: str, device: Device | None) -> BugRun:
    """Run `bug` on `backend` and without the bug, and print the results."""
    run = _on_own_case(runner, bug, device) if backend == bug.backend_before else _on_counterpart(runner, bug, backend)
    console.print(Text.assemble((bug.name, "bold"), f"  {bug.title}"))
    if run.remark:
        console.print(Text(f"  {run.remark}"))
    lacking = run.unsupported if run.after is None else None
    console.print(Text(f"  before  {backend}: {lacking or _result(run.before)}", style="green" if run.fails else "red"))
    if run.after is not None:
        found = run.unsupported or _result(run.after)
        console.print(Text(f"  after   {run.fixed or fixed(backend)}: {found}", style="green" if run.passes else "red"))
    return run


def _on_own_case(runner: Runner, bug: Bug, device: Device | None) -> BugRun:
    before = runner.verdict(bug.case_before)
    if not bug.backend_after:
        return BugRun(bug, bug.backend_before, before.failures, None, before.unsupported)
    after = runner.verdict(bug.case_after)
    native = device is not None and resolve(bug.backend_before).capability.device is not device
    remark = f"on native kernels: {bug.backend_before} has no kernels for this GPU" if native else ""
    return BugRun(
        bug, bug.backend_before, before.failures, after.failures, after.unsupported or before.unsupported, remark
    )


def _on_counterpart(runner: Runner, bug: Bug, backend: str) -> BugRun:
    case, after = (bug.case_in_release, bug.release_after) if backend == bug.release else (bug.case, "")
    assert case is not None
    found = shown_on(backend, case, _kinds(bug, backend), runner, after=after)
    unsupported = (
        found.after.unsupported if found.after is not None else "not run, because nothing failed before the fix"
    )
    return BugRun(
        bug,
        backend,
        found.before.failures if found.before is not None else (),
        found.after.failures if found.after is not None else (),
        unsupported,
        found.remark,
        found.fixed,
    )


def _kinds(bug: Bug, backend: str) -> tuple[Kind, ...]:
    """Return the failures by which a bug is known on a backend. A release may also break a contract."""
    return (*bug.kinds, Kind.CONTRACT_BROKEN) if backend == bug.release else bug.kinds


def _result(failures: Sequence[Observation]) -> str:
    if not failures:
        return "passes"
    return f"fails, {failures[0].kind}: {failures[0].message.splitlines()[0]}"


def _results(chosen: Sequence[Bug], runs: dict[str, BugRun], device: Device | None) -> Table:
    table = new_table("bug", "on", "before the fix", "after the fix", whole=("bug",))
    for bug in chosen:
        run = runs.get(bug.name)
        if run is None:
            table.add_row(bug.name, "", Text(f"not here: {_why_not(bug, device)}", style="dim"), "")
            continue
        before = _in_short(run.before)
        after = "" if run.after is None else _in_short(run.after)
        table.add_row(
            bug.name,
            resolve(run.backend).capability.device,
            Text(before, style="" if run.fails else "red"),
            Text("can't run" if run.unsupported else after, style="" if run.passes else "red"),
        )
    return table


def _in_short(failures: Sequence[Observation]) -> str:
    if not failures:
        return "passes"
    return f"{failures[0].kind} at {failures[0].place}" if failures[0].place else failures[0].kind


def _chosen(names: tuple[str, ...], *, project: str | None, bug_class: str | None, runnable: bool | None) -> list[Bug]:
    """Return the bugs that pass all filters. Raises BadInput if there is none."""
    _check("--project", project, projects())
    _check("--class", bug_class, [*map(str, BugClass)])
    found = [
        bug
        for bug in named(names, load_bugs(), "bug")
        if project in (None, bug.project)
        and bug_class in (None, bug.bug_class)
        and runnable in (None, bug.missing is None)
    ]
    if not found:
        raise BadInput("no bug matches: remove an option; attnfuzz bugs list shows all")
    return found


def _check(option: str, given: str | None, known: Sequence[str]) -> None:
    if given is not None and given not in known:
        raise BadInput(f"{option} {given!r} is unknown: give one of {', '.join(known)}")
