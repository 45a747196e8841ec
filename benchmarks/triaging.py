"""Cost of triage: time and runs from a reported bug's case to its culprit."""

import click
from measurement import seconds_of, show

from attnfuzz.harness.reported.bugs import Bug, load_bugs
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.triage import Triage, triage

REPORTS = ("sglang-21649", "sglang-21987", "sglang-22688", "sglang-24566", "sglang-24856")


@click.command()
@click.option("--bug", "names", multiple=True, default=REPORTS, show_default=True, help="Triage this one; repeatable.")
def main(*, names: tuple[str, ...]) -> None:
    """Triage reported bugs, each as it was before its fix."""
    known = {bug.name: bug for bug in load_bugs() if bug.reproduced}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.ClickException(f"no bug that fails here is called {', '.join(unknown)}: see attnfuzz bugs list")
    with Runner() as runner:
        rows = [_row(known[name], runner) for name in names]
    show("Triage", ("report", "seconds", "runs", "whose fault", ""), rows)


def _row(bug: Bug, runner: Runner) -> tuple[str, ...]:
    case = bug.case_before
    runner.start(case.backend)
    found: list[Triage] = []
    seconds = seconds_of(lambda: found.append(triage(case, runner)))
    runs = sum(variant.outcome.runs for variant in found[0].variants)
    return bug.name, f"{seconds:.1f}", str(runs), found[0].fault.value, found[0].repetition.value


if __name__ == "__main__":
    main()
