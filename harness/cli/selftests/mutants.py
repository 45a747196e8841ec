"""`attnfuzz mutants`: changes of a planner's code, and which of them a search finds."""

import shlex
from pathlib import Path

from rich.console import Console
from rich.text import Text

from attnfuzz.harness.cli.given import Trees, chosen_backends
from attnfuzz.harness.cli.selftests.answers import MutantAnswer, MutantsAnswer
from attnfuzz.harness.cli.terminal import Exit, Terminal, answer, details, new_table, print_line, tell, warn
from attnfuzz.harness.files.durable import write_durably
from attnfuzz.harness.findings.environment import environment
from attnfuzz.harness.mutants.choose import changed_lines
from attnfuzz.harness.mutants.places import code_of
from attnfuzz.harness.mutants.results import RESULTS, Fate, MutantResults, MutantsPlan, read_results, write_results
from attnfuzz.harness.mutants.run import crew, run
from attnfuzz.harness.mutants.words import MARKDOWN, at, change, conclusion, fate, in_order, render_markdown
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import drawn_cases, run_examples
from attnfuzz.reference.any_case import AnyCase

_STYLES = {Fate.SURVIVED: "red", Fate.SAME_PLANS: "dim", Fate.NOT_MADE: "yellow"}


def mutants(
    *,
    backend: str,
    named: tuple[Path, ...],
    since: str | None,
    sample: int | None,
    examples: int,
    seconds: float,
    trees: Trees,
    seed: int,
    jobs: int,
    home: Path,
) -> Exit:
    """Run mutants of the code that plans for a backend, print the table, and return the exit code."""
    (name,) = chosen_backends((backend,), None, trees)
    code = code_of(name, named)
    asked = MutantsPlan(
        backend=name,
        root=str(code.root),
        places=code.places,
        examples=examples,
        seconds=seconds,
        sample=sample,
        seed=seed,
        jobs=jobs,
        since=since,
    )
    if (home / RESULTS).exists():
        tell(f"{home / RESULTS} is of an earlier run and is overwritten.")
    return _run(MutantResults(asked=asked, environment=environment()), home)


def resume_mutants(home: Path) -> Exit:
    """Continue the run of a home, and return the exit code."""
    return _run(read_results(home), home)


def _run(results: MutantResults, home: Path) -> Exit:
    asked = results.asked
    lines = None if asked.since is None else changed_lines(Path(asked.root), asked.since)
    interrupted = False
    with crew(asked.jobs, lambda: _runner(asked.backend)) as team:
        try:
            for now in run(results, lambda: _drawn(asked), team, lines=lines, tell=tell):
                results = now
                _write(results, home)
        except KeyboardInterrupt:
            interrupted = True
    answer(_answer(results, interrupted=interrupted))
    _print(details(), results)
    print_line(Terminal(), conclusion(results), "bold")
    print_line(details(), f"Table: {home / MARKDOWN}, {home / RESULTS}")
    if interrupted:
        again = f"attnfuzz mutants --resume --home {shlex.quote(str(home))}"
        print_line(details(), f"Interrupted. Continue with: {again}")
        return Exit.INTERRUPTED
    if not results.cases:
        warn(f"No case of {asked.backend} passes on the unchanged code: attnfuzz fuzz --backend shows why.")
        return Exit.FAILED
    return Exit.FOUND if results.survivors else Exit.CLEAN


def _runner(backend: str) -> Runner:
    runner = Runner((backend,), progress=tell)
    runner.start(backend)
    return runner


def _drawn(asked: MutantsPlan) -> list[AnyCase]:
    """Draw the cases that all mutants share, as a search does."""
    cases: list[AnyCase] = []
    run_examples(drawn_cases(asked.backend), cases.append, examples=asked.examples, seed_of=asked.seed)
    return cases


def _write(results: MutantResults, home: Path) -> None:
    write_results(home, results)
    write_durably(home / MARKDOWN, render_markdown(results).encode())


def _print(console: Console, results: MutantResults) -> None:
    table = new_table("line", "change", "fate", whole=("line",))
    for outcome in in_order(results):
        style = _STYLES.get(outcome.fate, "")
        words = Text.assemble(f"{change(outcome)}\n", (outcome.source, "dim"))
        table.add_row(at(results, outcome), words, Text(fate(outcome), style=style))
    console.print(table)
    console.print()


def _answer(results: MutantResults, *, interrupted: bool) -> MutantsAnswer:
    failing, changing = results.score
    return MutantsAnswer(
        backend=results.asked.backend,
        interrupted=interrupted,
        cases=len(results.cases),
        possible=results.possible,
        failing=failing,
        changing=changing,
        mutants=tuple(
            MutantAnswer(
                at=at(results, each),
                source=each.source,
                operator=each.mutant.operator,
                before=each.mutant.before,
                after=each.mutant.after,
                fate=each.fate,
                kind=each.kind,
                place=each.place,
                examples=each.number,
                ran=each.ran,
                changed=each.changed,
                seconds=each.seconds,
            )
            for each in in_order(results)
        ),
    )
