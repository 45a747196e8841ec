"""Share of planted defects whose exported script shows the failure, with the scripts' lengths and times.

Each defect fails in its pinned case, is exported, and its script is run in a fresh process without attnfuzz.
"""

import random
import time
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median

import click
from measurement import count_option, seed_option, show

from attnfuzz.harness.defects.pins import load_pin
from attnfuzz.harness.export import CannotExport, Exporter
from attnfuzz.harness.export.proof import prove
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.kernels.defects.catalogue import DEFECTS, backend_name
from attnfuzz.kernels.defects.defect import Defect
from attnfuzz.reference.case_file import AnyCase

PINS = Path(__file__).parents[1] / "tests" / "defects"
RACES = 20
"""Number of runs of a pinned case within which a race shows."""


@dataclass(frozen=True)
class Scripted:
    """A defect's failure, its script (None if there is none), and the reason why that does not show it, or ""."""

    defect: Defect
    seen: Observation
    script: str | None
    obstacle: str
    seconds: float = 0.0


def scripted(runner: Runner, defect: Defect, limit: float, keep: Path | None) -> Scripted | None:
    """Export a defect's pinned case and run the script; None if the case passes."""
    found = _failing(runner, defect)
    if found is None:
        return None
    case, seen = found
    try:
        script = Exporter(case, runner, failed=seen).script()
    except CannotExport as obstacle:
        return Scripted(defect, seen, None, str(obstacle))
    except Exception as error:  # noqa: BLE001 - a bug of ours counts as well
        return Scripted(defect, seen, None, f"exporting it raises {type(error).__name__}: {error}")
    if keep is not None:
        (keep / f"{defect.name}.py").write_text(script)
    proof = prove(script, limit)
    return Scripted(defect, seen, script, proof.obstacle, proof.seconds)


def _failing(runner: Runner, defect: Defect) -> tuple[AnyCase, Observation] | None:
    pin = load_pin(PINS, defect.name)
    for _ in range(RACES if pin is not None else 0):
        assert pin is not None
        failures = runner.verdict(pin.case).failures
        if failures:
            return pin.case, failures[0]
    return None


@click.command()
@click.argument("names", nargs=-1, metavar="[DEFECT]...")
@click.option("--backend", default="*", help="Pattern of the backends to which the defects belong.")
@count_option("--sample", 1_000, "Defects to measure, drawn at random.")
@click.option("--within", type=click.FloatRange(min=0), default=1e9, help="Begin no defect after these seconds.")
@click.option("--limit", type=click.FloatRange(min=1), default=120, show_default=True, help="Seconds for each script.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False, exists=True), help="Write the scripts here.")
@seed_option
def main(
    *, names: tuple[str, ...], backend: str, sample: int, within: float, limit: float, keep: Path | None, seed: int
) -> None:
    """Export each planted defect's pinned failure, and run the scripts."""
    until = time.monotonic() + within
    chosen = [
        each for each in DEFECTS if (not names or each.name in names) and fnmatchcase(backend_name(each), backend)
    ]
    results: list[Scripted] = []
    quiet: list[Defect] = []
    with Runner() as runner:
        for defect in random.Random(seed).sample(chosen, min(sample, len(chosen))):
            if time.monotonic() >= until:
                break
            found = scripted(runner, defect, limit, keep)
            if found is None:
                quiet.append(defect)
            else:
                results.append(found)
    columns = ("failures of", "defects", "with a script", "that exits 1", "lines (median)", "seconds: median (worst)")
    tiers = sorted({each.seen.tier or each.seen.kind.value for each in results})
    rows = [
        _row(tier, [each for each in results if (each.seen.tier or each.seen.kind.value) == tier]) for tier in tiers
    ]
    show(f"Scripts of {len(results)} of {len(chosen)} planted defects", columns, [*rows, _row("all", results)])
    for obstacle, count in Counter(each.obstacle for each in results if each.obstacle).most_common():
        names_of = [each.defect.name for each in results if each.obstacle == obstacle]
        click.echo(f"{count}: {obstacle} ({', '.join(names_of)})")
    if quiet:
        click.echo(f"passed: {', '.join(each.name for each in quiet)}")


def _row(name: str, some: list[Scripted]) -> list[str]:
    scripts = [each for each in some if each.script is not None]
    lengths = [len(each.script.splitlines()) for each in some if each.script is not None]
    shown = sum(not each.obstacle for each in some)
    lines = f"{median(lengths):.0f}" if scripts else "-"
    seconds = [each.seconds for each in scripts] or [0.0]
    times = f"{median(seconds):.1f} ({max(seconds):.1f})"
    return [name, str(len(some)), str(len(scripts)), f"{shown} ({shown / max(len(some), 1):.0%})", lines, times]


if __name__ == "__main__":
    main()
