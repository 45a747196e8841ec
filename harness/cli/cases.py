"""Commands on one case: `attnfuzz new`, `replay`, `triage`, `shrink` and `export`."""

import contextlib
import shlex
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.campaign.home import FINDINGS
from attnfuzz.harness.campaign.plan import ALPHA, spent_per_output
from attnfuzz.harness.cli.answers import ListedFailure, ReplayAnswer, Smaller
from attnfuzz.harness.cli.given import Trees, case_at
from attnfuzz.harness.cli.new_case import new_case
from attnfuzz.harness.cli.terminal import (
    BadInput,
    Exit,
    Terminal,
    answer,
    details,
    extras,
    new_table,
    print_line,
    tell,
    warn,
)
from attnfuzz.harness.export import CannotExport, Exporter, NeedsFiles, Target
from attnfuzz.harness.family import family_of
from attnfuzz.harness.findings.environment import environment
from attnfuzz.harness.findings.record import Record, RecordError, read_history, read_record
from attnfuzz.harness.report.markdown import render_issue
from attnfuzz.harness.sandbox.again import ShownAgain, show_again
from attnfuzz.harness.sandbox.check import CannotRun, Runner, render_failure
from attnfuzz.harness.sandbox.tries import FRESH_SEEDS
from attnfuzz.harness.sanitizer.run import observations
from attnfuzz.harness.sanitizer.run import prepare as prepare_sanitized
from attnfuzz.harness.sanitizer.run import run as run_sanitized
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.search.shrink import CaseRejected, Shrunk, shrink
from attnfuzz.harness.triage import Blame, Triage, VariantOutcome
from attnfuzz.harness.triage import triage as triage_of
from attnfuzz.harness.triage.unrun import by_arguments, stand_in
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.verdict.printable import printable
from attnfuzz.harness.verdict.recurrence import MOST_SECONDS, SHOWN, Recurrence, percent
from attnfuzz.harness.verdict.sanitizer_tool import REPORTED_BY, SanitizerTool
from attnfuzz.harness.verdict.wording import count, left_unjudged
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import CallCase

SANITIZER_SECONDS = 300.0
"""Time limit of a case under compute-sanitizer, which makes kernels 10 to 1,000 times slower."""

_STYLES = {Blame.CALLER: "bold red", Blame.KERNEL: "bold red", Blame.UNCLEAR: "bold yellow", Blame.NONE: "bold green"}


def _runner(case: AnyCase, contract: str, seeds: int = 1) -> Runner:
    """Return a runner that judges like a campaign of this one case, run with `seeds` value seeds.

    With a smaller alpha, a failure that a longer campaign found by a narrow margin would pass.
    """
    return Runner([case.backend], contract=contract, alpha=spent_per_output(ALPHA, cases=seeds), progress=tell)


def _rejected(case: AnyCase, reason: object) -> BadInput:
    return BadInput(f"{case.backend} rejects this case: {reason}. Try another --backend.")


def new(
    *,
    backend: str,
    mode: str | None,
    queries: tuple[int, ...] | None,
    keys: tuple[int, ...] | None,
    fields: tuple[tuple[str, str], ...],
    output: Path | None,
    force: bool,
) -> Exit:
    """Write a new case, run it, print whether it fails, and return the exit code."""
    path = output or Path("case.json")
    _refuse_overwriting(path, force=force)
    case = new_case(backend, mode=mode, queries=queries or (), keys=keys or (), fields=dict(fields))
    case_file.save(path, case)
    details().print(Text(f"{family_of(case).describe(case)}\n"))
    print_line(details(), f"{path} is written. To run it again: attnfuzz replay {shlex.quote(str(path))}")
    with _runner(case, "declared") as runner:
        shown = _shown(case, runner, 1)
    _answer_replay(path, case, shown, conclusive=True)
    for observation in shown.verdict.failures if shown.verdict is not None else ():
        details().print(Text(f"{observation.kind}: {observation.place}\n{printable(observation.message)}"))
    verb, style = ("fails", "bold red") if shown.failed else ("passes", "bold green")
    print_line(Terminal(), f"{path} {verb} on {case.backend}.", style)
    return Exit.FOUND if shown.failed else Exit.CLEAN


def _refuse_overwriting(path: Path, *, force: bool) -> None:
    """Raise BadInput for a file that can't be written, or must not be."""
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent} is not a folder: name a file in one with -o.")
    if path.exists() and not force:
        raise BadInput(f"{path} exists: name another file with -o, or overwrite it with --force.")


def replay(
    *, path: Path, backend: str | None, trees: Trees, repeat: int | None, contract: str, tool: str | None
) -> Exit:
    """Run a case, print whether it fails, and return the exit code."""
    case = case_at(path, backend, trees)
    if (sanitizer := _sanitizer(path, tool)) is not None:
        shown = _sanitized(case, sanitizer, contract)
        _answer_replay(path, case, shown, conclusive=True)
        return _print_shown(path, case, shown, None)
    finding = _recurring_at(path)
    recurrence = None if finding is None else finding.recurrence
    if finding is not None and recurrence is not None and case.searchable:
        with _runner(case, contract, seeds=FRESH_SEEDS) as runner:
            shown = _shown_again(finding, recurrence, case, runner, repeat)
    else:
        with _runner(case, contract) as runner:
            shown = _shown(case, runner, repeat or 1)
    if shown.unsupported is not None:
        raise _rejected(case, shown.unsupported)
    _answer_replay(path, case, shown, conclusive=shown.failed > 0 or _refuted(shown, recurrence))
    return _print_shown(path, case, shown, recurrence)


def _answer_replay(path: Path, case: AnyCase, shown: ShownAgain, *, conclusive: bool) -> None:
    failures = shown.verdict.failures if shown.verdict is not None else ()
    answer(
        ReplayAnswer(
            path=str(path),
            backend=case.backend,
            fails=shown.failed > 0,
            runs=shown.runs,
            failed=shown.failed,
            conclusive=conclusive,
            failures=tuple(map(ListedFailure.of, failures)),
        )
    )


def _sanitizer(path: Path, tool: str | None) -> SanitizerTool | None:
    """Return the tool that was asked for, or the one that reported the finding at `path`."""
    if tool is not None:
        return SanitizerTool(tool)
    with contextlib.suppress(RecordError):
        return REPORTED_BY.get(read_history(path).observation.kind)
    return None


def _sanitized(case: AnyCase, tool: SanitizerTool, contract: str) -> ShownAgain:
    """Run a case once under compute-sanitizer. Raises BadInput and NotSanitized."""
    prepare_sanitized([case.backend], tell)
    ran = run_sanitized(tool, [case], seconds=SANITIZER_SECONDS, contract=contract)
    found = tuple(observations(ran.reports[0], tool))
    if ran.why_not_all and not found:
        raise BadInput(f"the run under compute-sanitizer did not end: {ran.why_not_all}. Try a smaller case.")
    verdict = Verdict(observations=found)
    unsupported = ran.unsupported.get(0)
    if unsupported is not None:
        raise _rejected(case, unsupported)
    return ShownAgain(1, 1, int(bool(found)), verdict, None)


def _refuted(shown: ShownAgain, recurrence: Recurrence | None) -> bool:
    """Return whether the runs refute the failure's recorded rate; they never do for a failure that was seen once."""
    return shown.conclusive and not (recurrence is not None and recurrence.seen_once)


def _shown(case: AnyCase, runner: Runner, times: int) -> ShownAgain:
    """Run a case, and explain its first failure."""
    verdicts = [runner.verdict(case) for _ in range(times)]
    failed = [verdict for verdict in verdicts if verdict.failures]
    verdict = runner.explained(case, failed[0]) if failed else verdicts[0]
    unsupported = next((each.unsupported for each in verdicts if each.unsupported is not None), None)
    return ShownAgain(times, times, len(failed), verdict, unsupported)


def _print_shown(path: Path, case: AnyCase, shown: ShownAgain, recurrence: Recurrence | None) -> Exit:
    """Print whether a case fails, and how often, and return the exit code: one failure is enough."""
    repeated = recurrence is not None or shown.wanted > 1
    often = f": {shown.failed or 'none'} of {count(shown.runs, 'run')} failed" if repeated else ""
    if shown.failed and shown.verdict is not None:
        details().print(Text(f"{render_failure(case, shown.verdict).rstrip()}\n"))
        print_line(Terminal(), f"{path} still fails on {case.backend}{often}.", "bold red")
        return Exit.FOUND
    extras().print(Text(f"{family_of(case).describe(case)}\n"))
    if shown.verdict is not None and shown.verdict.unanswered:
        print_line(details(), left_unjudged(shown.verdict.unanswered).capitalize() + ".")
    text = f"{path} {'passes' if recurrence is None else 'did not fail'} on {case.backend}{often}."
    if recurrence is not None:
        text += f" {_meaning(shown, recurrence)}"
    print_line(Terminal(), text, "bold green" if _refuted(shown, recurrence) else "bold yellow")
    return Exit.CLEAN


def _meaning(shown: ShownAgain, recurrence: Recurrence) -> str:
    """Interpret runs of a flaky finding, none of which failed, in a sentence."""
    if recurrence.seen_once:
        return "It was seen only once, so no number of runs shows that it is fixed."
    runs = count(shown.wanted, "run")
    if shown.conclusive:
        return f"At its recorded rate, it would show in {runs} with a probability of {percent(SHOWN)}."
    return f"It takes {runs} to show it with a probability of {percent(SHOWN)}."


def _recurring_at(path: Path) -> Record | None:
    """Return the finding in the folder `path` if it is flaky. Raises RecordError if files of it are missing."""
    recurrence = None
    with contextlib.suppress(RecordError):
        # A folder with only a case counts as a case.
        recurrence = read_history(path).recurrence
    return None if recurrence is None else read_record(path)


def _shown_again(found: Record, recurrence: Recurrence, case: AnyCase, runner: Runner, times: int | None) -> ShownAgain:
    """Run `case`, that of a finding on any backend, under the finding's conditions until it fails, or `times` times."""
    own = found.case.backend
    before = [each.having(backend=case.backend) if each.backend == own else each for each in found.before]
    tell(recurrence.words)
    if times is None:
        runs = count(recurrence.runs_to_show, "time")
        often = f"until it fails, up to {runs} (which show it with a probability of {percent(SHOWN)})"
        often = "several times" if recurrence.seen_once else often
        tell(f"Running it {often}, or for {MOST_SECONDS} s; --repeat sets another number.")
    return show_again(runner, case, found.observation, recurrence, before, seconds=MOST_SECONDS, times=times)


def shrink_case(
    *,
    path: Path,
    output: Path | None,
    force: bool,
    max_runs: int,
    seconds: float,
    backend: str | None,
    trees: Trees,
    repeat: int,
    same_kernels: bool,
    contract: str,
) -> Exit:
    """Write the smallest case that fails as the given one does, and return the exit code."""
    target = output or _beside(path)
    _refuse_overwriting(target, force=force)
    case = case_at(path, backend, trees)
    with _runner(case, contract) as runner:
        try:
            budget = ShrinkBudget(runs=max_runs, seconds=seconds)
            shrunk = shrink(case, runner, budget=budget, repeat=repeat, same_kernels=same_kernels)
        except CaseRejected as error:
            raise _rejected(case, error) from error
    if shrunk is None:
        answer(_smaller(path, case, None, None))
        print_line(Terminal(), f"{path} passes on {case.backend}: there is nothing to shrink.")
        return Exit.CLEAN
    case_file.save(target, shrunk.case)
    answer(_smaller(path, case, target, shrunk))
    # Both have the same notes, which are only printed after the second.
    before, after = family_of(case).describe(case, notes=False), family_of(shrunk.case).describe(shrunk.case)
    console = details()
    console.print(Text(f"before\n{before}\n\nafter\n{after}\n"))
    print_line(Terminal(), f"{target}: {_summary(shrunk, same=shrunk.case == case)}")
    quoted = shlex.quote(str(target))
    print_line(console)
    for command in (f"replay {quoted}", f"triage {quoted}", f"export {quoted} -o repro.py"):
        print_line(console, f"  attnfuzz {command}")
    return Exit.FOUND


def _smaller(path: Path, case: AnyCase, target: Path | None, shrunk: Shrunk | None) -> Smaller:
    return Smaller(
        path=str(path),
        backend=case.backend,
        fails=shrunk is not None,
        case=None if target is None else str(target),
        failure=None if shrunk is None else ListedFailure.of(shrunk.observation),
        runs=None if shrunk is None else shrunk.runs,
        steady=None if shrunk is None else shrunk.steady,
    )


def _beside(path: Path) -> Path:
    # Not in a finding's folder, which a campaign replaces when it finds a smaller case. Nor next to it: findings are
    # folders, and campaigns warn of anything else there.
    if path.is_dir():
        # For the current folder or its parent, use the real name.
        named = path if path.name and path.name != ".." else path.resolve()
        folder = named.parent.parent if named.parent.name == FINDINGS else named.parent
        return folder / f"{named.name}.small.json"
    return path.with_suffix(".small.json")


def _summary(shrunk: Shrunk, *, same: bool) -> str:
    failure = shrunk.observation
    where = f" in {failure.kernel}" if failure.kernel else ""
    smaller = "no smaller case fails in the same way" if same else "the smaller case fails in the same way"
    text = f"{failure.kind}: {failure.place}{where}: {smaller} ({count(shrunk.runs, 'run')})."
    return text if shrunk.steady else f"{text} It did not fail again in a fresh worker: try --repeat."


def triage(
    *,
    path: Path,
    backend: str | None,
    trees: Trees,
    repeat: int,
    contract: str,
) -> Exit:
    """Print whose fault a failing case is and why, and return the exit code."""
    case = case_at(path, backend, trees)
    found = _without_running(case)
    if found is None:
        case = _here(case)
        with _runner(case, contract) as runner:
            found = triage_of(case, runner, repeats=repeat)
    answer(found)
    Terminal().print(Text(printable(found.conclusion), style=_STYLES[found.fault]))
    _show_reasons(details(), found, path)
    return Exit.FOUND if found.fails else Exit.CLEAN


def _without_running(case: AnyCase) -> Triage | None:
    """Return the triage of calls that can't run here, if their arguments decide it."""
    lacking = resolve(case.backend).missing()
    if lacking is None or not isinstance(case, CallCase):
        return None
    tell(f"{case.backend} can't run here: {lacking}.")
    return by_arguments(case)


def _here(case: AnyCase) -> AnyCase:
    """Return the case, on other kernels that take the same calls if its own can't run here. Raises CannotRun."""
    lacking = resolve(case.backend).missing()
    if lacking is None or not isinstance(case, CallCase):
        return case
    other = stand_in(case)
    if other is None:
        raise CannotRun(
            f"{case.backend} can't run here: {lacking}. The calls break no precondition that their arguments show, and "
            "no other backend takes them: run attnfuzz triage on a machine that has it"
        )
    tell(
        f"The calls run on {other}, which takes the same ones: mistakes of the caller show, those of the kernel don't."
    )
    return case.having(backend=other)


def _show_reasons(console: Console, found: Triage, path: Path) -> None:
    for sentence in found.sentences:
        item = Table.grid(padding=(0, 1))
        item.add_column(width=1)
        item.add_column(overflow="fold")
        item.add_row("-", Text(printable(sentence)))
        console.print(item)
    if found.variants:
        console.print()
        console.print(_variants(found))
    if found.fails:
        console.print()
        given = shlex.quote(str(path))
        print_line(console, f"minimize: attnfuzz shrink {given}")
        print_line(console, f"script:   attnfuzz export {given}")


def _variants(found: Triage) -> Table:
    variants = new_table("varied", "to", "runs", "result", numbers=("runs",))
    for variant in found.variants:
        runs = variant.outcome.runs
        style = "" if runs else "dim"
        variants.add_row(variant.what, variant.value, str(runs or "-"), Text(_result(variant.outcome)), style=style)
    return variants


def _result(outcome: VariantOutcome) -> str:
    """Describe the outcome of a variant, in half a line."""
    if not outcome.runs:
        return f"not run: {printable(outcome.reason)}"
    if outcome.failure is None:
        return "passes"
    place = f" at {printable(outcome.failure.place)}" if outcome.failure.place else ""
    often = f" in {outcome.failed}" if outcome.failed < outcome.runs else ""
    return f"fails{often}, {outcome.failure.kind}{place}"


def export(*, path: Path, target: str | None, carry: tuple[Path, ...], issue: bool, output: Path | None) -> None:
    """Write a stand-alone script, or the text of an issue."""
    case = case_at(path)
    wanted = None if target is None else Target(target)
    finding = _recurring_at(path)
    try:
        if finding is None:
            exporter = Exporter(case, carry=carry)
        else:
            exporter = Exporter(case, failed=finding.observation, recurrence=finding.recurrence, carry=carry)
        text = _issue(case, exporter, wanted) if issue else exporter.script(wanted or exporter.default)
    except NeedsFiles as error:
        raise BadInput(f"{path} can't be exported: {error.advice(shlex.quote(str(path)))}") from error
    except CannotExport as error:
        raise BadInput(f"{path} can't be exported: {error}") from error
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text)
        tell(f"Wrote {output}.")
    if exporter.not_run:
        warn(f"The calls were not run: {exporter.not_run}. The script finds out whether they fail.")


def _issue(case: AnyCase, exporter: Exporter, target: Target | None) -> str:
    """Return the text of an issue, with the script for `target`, or for every target that has one."""
    if exporter.seen is None:
        raise CannotExport("it passes, so there is nothing to report")
    # A failure that no script shows can still be reported.
    scripts = list(exporter.scripts(None if target is None else [target]))
    return render_issue(case, exporter.seen, environment(), scripts)
