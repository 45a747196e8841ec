"""Causes found for planted defects, alone or two in one backend: how often they are found apart, merged or split.

Each backend is searched by its own campaign. A finding's smallest case shows which defect it belongs to: the case fails
on the backend with that defect alone, or at least fails there in the same way as the finding. Two defects count as
found apart if each has a cause with none of the other's findings, as merged if a cause has findings of both, and as
split if one of them has several causes. They are undecided if causes of both stand under one heading of the report. A
cause is minimized if the case that represents it has fewer than 16 rows.
Causes that were not minimized in time are often split for that reason.
"""

import itertools
import math
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import click
import msgspec
from measurement import count_option, json_option, seed_option, show

from attnfuzz.harness.backends.registry import UnknownBackend, resolve
from attnfuzz.harness.campaign.events import AnyFinding
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.run import run
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.files.durable import write_durably
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.workers.tethered import die_with
from attnfuzz.kernels.defects.catalogue import DEFECTS, backend_name
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Case
from attnfuzz.reference.case_file import encode

SMALL = 16
"""Number of rows from which a case counts as not minimized."""

SEEDS = 3
"""Number of value seeds with which a finding's case runs on a backend with one defect."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The budget of each campaign: `examples`, or `seconds` instead. A campaign is stopped after `most_seconds`."""

    seed: int
    examples: int
    seconds: float | None
    most_seconds: float | None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The results for one backend: its findings, the defects behind each cause ("A", "B" or "AB"), and the cost.

    `rows` has the number of rows of each cause's representative case; `cut_short` is set if the campaign ran out of
    time.
    """

    backend: str
    findings: int
    causes: tuple[str, ...]
    needs: tuple[str, ...]
    rows: tuple[int, ...]
    cases: int
    seconds: float
    cut_short: bool
    smallest: tuple[str, ...]
    symptoms: tuple[tuple[str, ...], ...]
    """For each finding of each cause: its defect, kind, mode and place."""
    headings: tuple[str, ...] = ()
    """The heading of each cause, which causes that are probably one bug share."""

    @property
    def pair(self) -> bool:
        """Whether there are two defects."""
        return len(self.backend.split("+")) > 2

    @property
    def misplaced(self) -> int:
        """Number of findings in causes that have more findings of the other defect."""
        whose = (Counter(symptom.partition(" ")[0] for symptom in cause) for cause in self.symptoms)
        return sum(min(each["A"], each["B"]) for each in whose)

    @property
    def undecided(self) -> bool:
        """Whether a cause of one defect and another one of the other have the same heading."""
        whose: dict[str, set[str]] = {}
        for heading, cause in zip(self.headings, self.causes, strict=False):
            whose.setdefault(heading, set()).add(cause)
        return any({"A", "B"} <= causes for causes in whose.values())

    @property
    def outcome(self) -> str:
        """The outcome in words."""
        if not self.pair:
            return "not found" if not self.causes else "one cause" if len(self.causes) == 1 else "split"
        words = ["merged"] if "AB" in self.causes else []
        alone = [each for each in "AB" if self.causes.count(each) > 1]
        found = {each for each in "AB" if each in self.causes}
        words += [f"split {' '.join(alone)}"] if alone else []
        words += ["apart"] if found == {"A", "B"} else [f"only {' '.join(sorted(found)) or 'both together'}"]
        return ", ".join(words)


def measured(backend: str, settings: Settings, until: float = math.inf) -> Measured | None:
    """Search a backend and attribute each cause. Return None after the time `until` on the monotonic clock."""
    if time.monotonic() >= until:
        return None
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(
            backends=(backend,),
            examples=settings.examples if settings.seconds is None else None,
            seconds=settings.seconds,
            seed=settings.seed,
            jobs=1,
            contract="declared",
            guard=None,
            out=Path(folder),
        )
        clock = threading.Timer(settings.most_seconds or threading.TIMEOUT_MAX, stop.set)
        clock.daemon = True
        clock.start()
        standing = run(plan, stop=stop).standing
        clock.cancel()
        with Runner() as runner:
            return _of(runner, backend, standing, cut_short=stop.is_set())


def _of(runner: Runner, backend: str, standing: Standing, *, cut_short: bool) -> Measured:
    causes = standing.causes
    whose = {each.name: _whose(runner, backend, each) for cause in causes for each in cause.findings}
    return Measured(
        backend=backend,
        findings=len(standing.findings),
        causes=tuple("".join(sorted({whose[each.name] for each in cause.findings} - {"?"})) or "?" for cause in causes),
        needs=tuple(" ".join(cause.needs).replace(" ", "_") or "-" for cause in causes),
        rows=tuple(_tokens(cause.findings[0].case) for cause in causes),
        cases=standing.runs,
        seconds=round(standing.at, 1),
        cut_short=cut_short,
        smallest=tuple(encode(cause.findings[0].case).decode() for cause in causes),
        symptoms=tuple(tuple(_symptom(whose[each.name], each) for each in cause.findings) for cause in causes),
        headings=tuple(" | ".join(cause.heading) for cause in causes),
    )


def _symptom(whose: str, finding: AnyFinding) -> str:
    fingerprint = finding.fingerprint
    return " | ".join((whose, fingerprint.kind, fingerprint.mode, fingerprint.place, ", ".join(finding.needs)))


def _whose(runner: Runner, backend: str, finding: AnyFinding) -> str:
    """Return "A" or "B" if a finding's case fails with one of the two defects alone, "?" for both or neither.

    If a case fails with each defect in its own way, the defect that fails in the same way as the finding counts.
    """
    correct, *planted = backend.split("+")
    if len(planted) < 2:
        return "A"
    kinds = {
        letter: _kinds(runner, finding.case, f"{correct}+{each}") for letter, each in zip("AB", planted, strict=True)
    }
    failing = [letter for letter, each in kinds.items() if each]
    alike = [letter for letter in failing if finding.observation.kind in kinds[letter]]
    return next((each[0] for each in (failing, alike) if len(each) == 1), "?")


def _tokens(case: AnyCase) -> int:
    assert isinstance(case, Case)
    return sum(step.padded_tokens for step in case.steps)


def _kinds(runner: Runner, case: AnyCase, backend: str) -> set[Kind]:
    """Return the kinds of all failures of a case on a backend, over a few value seeds."""
    seeded = (case.having(backend=backend).reseeded(offset) for offset in range(SEEDS))
    return {each.kind for again in seeded for each in runner.verdict(again).failures}


def pairs_of_defects(seed: int) -> Iterator[str]:
    """Yield all pairs that can be planted together, in an order shuffled by `seed`."""
    pairs = [each for each in itertools.combinations(DEFECTS, 2) if each[0].backend == each[1].backend]
    random.Random(seed).shuffle(pairs)
    for first, second in pairs:
        name = f"{first.backend}+{first.name}+{second.name}"
        try:
            resolve(name)
        except UnknownBackend:
            continue
        yield name


def lone_defects(seed: int) -> list[str]:
    """Return all backends with one planted defect, in an order shuffled by `seed`."""
    names = [backend_name(each) for each in DEFECTS]
    return random.Random(seed).sample(names, len(names))


def _summary(found: Sequence[Measured]) -> list[tuple[str, str]]:
    pairs = [each for each in found if each.pair]
    planted = max(1, 2 * len(pairs) + sum(not each.pair for each in found))
    causes, small = (sum(len(each.causes) for each in found), sum(rows < SMALL for each in found for rows in each.rows))
    misplaced = sum(each.misplaced for each in pairs)
    both = [
        ("pairs found apart", f"{sum('apart' in each.outcome for each in pairs)} of {len(pairs)}"),
        ("pairs merged", f"{sum('merged' in each.outcome for each in pairs)} of {len(pairs)}"),
        ("pairs undecided", f"{sum(each.undecided for each in pairs)} of {len(pairs)}"),
        ("findings in a cause of the other defect", f"{misplaced} of {sum(each.findings for each in pairs)}"),
    ]
    return [
        *(both if pairs else ()),
        ("split", f"{sum('split' in each.outcome for each in found)} of {len(found)}"),
        ("causes per planted defect", f"{causes / planted:.2f}"),
        ("headings per planted defect", f"{sum(len(set(each.headings)) for each in found) / planted:.2f}"),
        (f"of these, of fewer than {SMALL} rows", f"{small / planted:.2f}"),
        ("findings per cause", f"{sum(each.findings for each in found) / max(1, causes):.2f}"),
        ("campaigns cut short", f"{sum(each.cut_short for each in found)} of {len(found)}"),
        ("cases per second of a campaign", f"{_rate(found):.0f}"),
    ]


def _rate(found: Sequence[Measured]) -> float:
    return sum(each.cases for each in found) / max(1e-3, sum(each.seconds for each in found))


class _File(msgspec.Struct, frozen=True):
    """The numbers of a run; a later run with the same settings adds to them."""

    settings: Settings
    found: tuple[Measured, ...] = ()


def _kept(file: Path | None, settings: Settings) -> list[Measured]:
    if file is None or not file.exists():
        return []
    try:
        kept = msgspec.json.decode(file.read_bytes(), type=_File)
    except msgspec.MsgspecError as error:
        raise click.BadParameter(f"{file} is not of this benchmark: {error}", param_hint="--json") from error
    if kept.settings != settings:
        raise click.BadParameter(f"{file} is of other settings: name another file", param_hint="--json")
    return list(kept.found)


@click.command()
@click.option("--backend", "backends", multiple=True, help="These backends, instead of pairs of planted defects.")
@count_option("--pairs", 12, "Pairs of planted defects.")
@click.option("--alone", type=click.IntRange(min=0), default=0, help="Defects planted alone, instead of pairs.")
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Pairs to leave out, of those drawn by --seed.")
@click.option("--seconds", type=click.FloatRange(min=1), help="Seconds of each campaign, instead of --examples.")
@count_option("--examples", 3000, "Examples of each campaign.")
@click.option("--most-seconds", type=click.FloatRange(min=1), help="End a campaign of --examples after this time.")
@count_option("--jobs", 1, "Campaigns at the same time, each on about one core.")
@click.option("--within", type=click.FloatRange(min=0), help="Begin no campaign after these seconds.")
@click.option("--rows", is_flag=True, help="Also print a row for each backend.")
@json_option
@seed_option
def main(
    *,
    backends: tuple[str, ...],
    pairs: int,
    alone: int,
    skip: int,
    seconds: float | None,
    examples: int,
    most_seconds: float | None,
    jobs: int,
    within: float | None,
    rows: bool,
    json_file: Path | None,
    seed: int,
) -> None:
    """Search backends with planted defects, and count findings, causes, wrong merges and wrong splits.

    With --json FILE, the numbers are written after each backend, and backends that are already in FILE are not searched
    again. With --within 0, only the results in FILE are summed up.
    """
    until = math.inf if within is None else time.monotonic() + within
    drawn: Iterator[str] = iter(lone_defects(seed)) if alone else pairs_of_defects(seed)
    chosen = backends or tuple(itertools.islice(drawn, skip, skip + (alone or pairs)))
    settings = Settings(seed=seed, examples=examples, seconds=seconds, most_seconds=most_seconds)
    kept = _kept(json_file, settings)
    known = {each.backend for each in kept}
    # Campaigns end with this process, even if it is killed.
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=die_with, initargs=(os.getpid(),)) as pool:
        left = (backend for backend in chosen if backend not in known and time.monotonic() < until)
        futures = {pool.submit(measured, backend, settings, until): backend for backend in left}
        for future in as_completed(futures):
            if error := future.exception():
                click.echo(f"{futures[future]}: {error}", err=True)
                continue
            if (result := future.result()) is None:
                continue
            kept.append(result)
            click.echo(f"{len(kept)}: {result.backend}: {result.outcome}", err=True)
            if json_file is not None:
                write_durably(json_file, msgspec.json.encode(_File(settings, tuple(kept))))
    found = [each for each in kept if each.backend in chosen]
    if rows:
        columns = ("backend", "findings", "causes", "whose", "needs", "outcome", "cases", "seconds")
        show("Causes of planted defects", columns, [_cells(each) for each in found])
    show("Planted defects and their causes", ("", ""), _summary(found))
    if len(found) < len(chosen):
        raise click.ClickException(
            f"{len(chosen) - len(found)} backends were not measured: see above, or give more time"
        )


def _cells(each: Measured) -> list[str]:
    numbers = (str(each.findings), str(len(each.causes)), " ".join(each.causes), " ".join(each.needs))
    return [each.backend, *numbers, each.outcome, str(each.cases), f"{each.seconds:.0f}"]


if __name__ == "__main__":
    main()
