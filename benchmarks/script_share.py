"""Share of planted defects whose exported script shows the failure, with the scripts' lengths and times; whose fault.

Each defect fails in its pinned case, is exported, and its script is run in a fresh process without attnfuzz. Then the
failure is triaged as in a campaign: a defect that replaces a kernel is the kernel's fault, any other its caller's.
"""

import random
import time
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median

import click
import msgspec
from measurement import count_option, json_option, seed_option, show

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.defects.pins import load_pin
from attnfuzz.harness.export import CannotExport, Exporter
from attnfuzz.harness.export.proof import prove
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.triage.run import blamed_for
from attnfuzz.harness.verdict.blame import Blame
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.kernels.defects.catalogue import DEFECTS, backend_name
from attnfuzz.kernels.defects.defect import Defect
from attnfuzz.reference.any_case import AnyCase

PINS = Path(__file__).parents[1] / "tests" / "defects"
RACES = 20
"""Number of runs of a pinned case within which a race shows."""


class Scripted(msgspec.Struct, frozen=True, kw_only=True):
    """A defect's failure, of a tier or kind; its script's lines, None without one; whose fault it is, and was said.

    `obstacle` is the reason why the script does not show the failure, or "". `seen` is "" if the case passes.
    """

    defect: str
    seen: str = ""
    lines: int | None = None
    obstacle: str = ""
    seconds: float = 0.0
    fault: Blame = Blame.NONE
    blamed: Blame = Blame.NONE


def measured(runner: Runner, defect: Defect, limit: float, keep: Path | None) -> Scripted:
    """Export a defect's pinned case, run the script, and triage the failure."""
    found = _failing(runner, defect)
    if found is None:
        return Scripted(defect=defect.name)
    case, seen = found
    script, obstacle, seconds = _script(runner, case, seen, limit)
    if keep is not None and script is not None:
        (keep / f"{defect.name}.py").write_text(script)
    return Scripted(
        defect=defect.name,
        seen=seen.tier or seen.kind.value,
        lines=None if script is None else len(script.splitlines()),
        obstacle=obstacle,
        seconds=seconds,
        fault=Blame.KERNEL if in_kernel(defect) else Blame.CALLER,
        blamed=blamed_for(case, seen, runner).fault,
    )


def _script(runner: Runner, case: AnyCase, seen: Observation, limit: float) -> tuple[str | None, str, float]:
    """Return a script, the reason why it does not show the failure, and the seconds that it took."""
    try:
        script = Exporter(case, runner, failed=seen).script()
    except CannotExport as obstacle:
        return None, str(obstacle), 0.0
    except Exception as error:  # noqa: BLE001 - a bug of ours counts as well
        return None, f"exporting it raises {type(error).__name__}: {error}", 0.0
    proof = prove(script, limit)
    return script, proof.obstacle, proof.seconds


def _failing(runner: Runner, defect: Defect) -> tuple[AnyCase, Observation] | None:
    pin = load_pin(PINS, defect.name)
    for _ in range(RACES if pin is not None else 0):
        assert pin is not None
        failures = runner.verdict(pin.case).failures
        if failures:
            return pin.case, failures[0]
    return None


def in_kernel(defect: Defect) -> bool:
    """Return whether a defect replaces a kernel, and not the code that calls it."""
    right = [op.function for op in resolve(defect.backend).ops.values()]
    return any(op.function not in right for op in resolve(backend_name(defect)).ops.values())


@click.command()
@click.argument("names", nargs=-1, metavar="[DEFECT]...")
@click.option("--backend", default="*", help="Pattern of the backends to which the defects belong.")
@count_option("--sample", 1_000, "Defects to measure, drawn at random.")
@click.option("--within", type=click.FloatRange(min=0), default=1e9, help="Begin no defect after these seconds.")
@click.option("--limit", type=click.FloatRange(min=1), default=120, show_default=True, help="Seconds for each script.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False, exists=True), help="Write the scripts here.")
@json_option
@seed_option
def main(
    *,
    names: tuple[str, ...],
    backend: str,
    sample: int,
    within: float,
    limit: float,
    keep: Path | None,
    json_file: Path | None,
    seed: int,
) -> None:
    """Export each planted defect's pinned failure, run the scripts, and triage the failures.

    Defects that a JSON file has already are not measured again.
    """
    until = time.monotonic() + within
    chosen = [
        each for each in DEFECTS if (not names or each.name in names) and fnmatchcase(backend_name(each), backend)
    ]
    kept = json_file.read_bytes() if json_file is not None and json_file.exists() else b"[]"
    results = {each.defect: each for each in msgspec.json.decode(kept, type=list[Scripted])}
    drawn = random.Random(seed).sample(chosen, min(sample, len(chosen)))
    with Runner() as runner:
        for defect in drawn:
            if time.monotonic() >= until:
                break
            if defect.name in results:
                continue
            results[defect.name] = measured(runner, defect, limit, keep)
            if json_file is not None:
                json_file.write_bytes(msgspec.json.format(msgspec.json.encode(list(results.values())), indent=1))
    _tables([results[defect.name] for defect in drawn if defect.name in results], len(chosen))


def _tables(results: Sequence[Scripted], chosen: int) -> None:
    failing = [each for each in results if each.seen]
    columns = ("failures of", "defects", "with a script", "that exits 1", "lines (median)", "seconds: median (worst)")
    rows = [
        _of_scripts(name, [each for each in failing if each.seen == name])
        for name in sorted({each.seen for each in failing})
    ]
    show(f"Scripts of {len(failing)} of {chosen} planted defects", columns, [*rows, _of_scripts("all", failing)])
    at_fault = [
        _of_blame(fault.value, [each for each in failing if each.fault is fault])
        for fault in (Blame.KERNEL, Blame.CALLER)
    ]
    show(
        f"Whose fault: {len(failing)} of {chosen} planted defects",
        ("planted in the", "defects", "right", "wrong", "undecided"),
        [*at_fault, _of_blame("both", failing)],
    )
    for title, reasons in (
        ("obstacle", {each.defect: each.obstacle for each in failing}),
        ("wrong", {each.defect: each.blamed.words for each in failing if _wrong(each)}),
        ("undecided", {each.defect: each.blamed.words for each in failing if each.blamed is Blame.UNCLEAR}),
    ):
        for reason, count in Counter(filter(None, reasons.values())).most_common():
            click.echo(f"{title}, {count}: {reason} ({', '.join(name for name in reasons if reasons[name] == reason)})")
    passing = [each.defect for each in results if not each.seen]
    if passing:
        click.echo(f"passed: {', '.join(passing)}")


def _of_scripts(name: str, some: Sequence[Scripted]) -> list[str]:
    scripts = [each for each in some if each.lines is not None]
    lengths = [each.lines for each in some if each.lines is not None]
    shown = sum(not each.obstacle for each in some)
    lines = f"{median(lengths):.0f}" if lengths else "-"
    seconds = [each.seconds for each in scripts] or [0.0]
    times = f"{median(seconds):.1f} ({max(seconds):.1f})"
    return [name, str(len(some)), str(len(scripts)), f"{shown} ({shown / max(len(some), 1):.0%})", lines, times]


def _of_blame(name: str, some: Sequence[Scripted]) -> list[str]:
    right = sum(each.blamed is each.fault for each in some)
    wrong = sum(map(_wrong, some))
    shares = (f"{count} ({count / max(len(some), 1):.1%})" for count in (right, wrong, len(some) - right - wrong))
    return [name, str(len(some)), *shares]


def _wrong(each: Scripted) -> bool:
    return each.blamed in (Blame.KERNEL, Blame.CALLER) and each.blamed is not each.fault


if __name__ == "__main__":
    main()
