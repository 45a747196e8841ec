"""Findings per cause of planted defects: alone, and two in one backend.

Each backend is searched by a campaign of its own. Whose a finding is follows from its smallest case: it fails on the
backend with the one defect alone, or with the other, or with one of them in the finding's way. Two defects are found
apart if each has a cause with none of the other's findings, merged if a cause has findings of both, and split if one
has several causes.
"""

import itertools
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from measurement import count_option, json_option, seed_option, show
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import UnknownBackend, resolve
from attnfuzz.harness.campaign.events import AnyFinding
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.run import run
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.defects.catalogue import DEFECTS
from attnfuzz.reference.case import Case
from attnfuzz.reference.case_file import encode

SEEDS = 3
"""Value seeds with which a finding's case is run on a backend with one defect."""


@dataclass(frozen=True)
class Measured:
    """One backend: its findings, its causes by whose they are ("A", "B", "AB" for both), and the cost."""

    backend: str
    findings: int
    causes: tuple[str, ...]
    needs: tuple[str, ...]
    cases: int
    seconds: float
    smallest: tuple[str, ...]
    symptoms: tuple[tuple[str, ...], ...]
    """Of each finding of each cause: whose it is, its kind, mode and place."""

    @property
    def pair(self) -> bool:
        """Whether there are two defects."""
        return len(self.backend.split("+")) > 2

    @property
    def outcome(self) -> str:
        """The outcome for the defects, in words."""
        if not self.pair:
            return "not found" if not self.causes else "one cause" if len(self.causes) == 1 else "split"
        words = ["merged"] if "AB" in self.causes else []
        alone = [each for each in "AB" if self.causes.count(each) > 1]
        found = {each for each in "AB" if each in self.causes}
        words += [f"split {' '.join(alone)}"] if alone else []
        words += ["apart"] if found == {"A", "B"} else [f"only {' '.join(sorted(found)) or 'both together'}"]
        return ", ".join(words)


def measured(runner: Runner, backend: str, *, seconds: float | None, examples: int | None, seed: int) -> Measured:
    """Search a backend, and say whose each cause is."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(
            backends=(backend,),
            examples=examples if seconds is None else None,
            seconds=seconds,
            seed=seed,
            jobs=1,
            contract="declared",
            guard=None,
            out=Path(folder),
        )
        standing = run(plan).standing
    return _of(runner, backend, standing)


def _of(runner: Runner, backend: str, standing: Standing) -> Measured:
    causes = standing.causes
    whose = {each.name: _whose(runner, backend, each) for cause in causes for each in cause.findings}
    return Measured(
        backend=backend,
        findings=len(standing.findings),
        causes=tuple("".join(sorted({whose[each.name] for each in cause.findings} - {"?"})) or "?" for cause in causes),
        needs=tuple(" ".join(cause.needs).replace(" ", "_") or "-" for cause in causes),
        cases=standing.cases,
        seconds=round(standing.at, 1),
        smallest=tuple(encode(cause.findings[0].case).decode() for cause in causes),
        symptoms=tuple(tuple(_symptom(whose[each.name], each) for each in cause.findings) for cause in causes),
    )


def _symptom(whose: str, finding: AnyFinding) -> str:
    fingerprint = finding.fingerprint
    return " | ".join((whose, fingerprint.kind, fingerprint.mode, fingerprint.place, ", ".join(finding.needs)))


def _whose(runner: Runner, backend: str, finding: AnyFinding) -> str:
    """Return "A" or "B" for a finding whose case fails with one of the two defects alone, "?" for both or neither.

    A case may fail with each of them in its own way: then it counts which fails as the finding does.
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


def _kinds(runner: Runner, case: Case, backend: str) -> set[Kind]:
    """The kinds of all failures of a case on a backend, with any of a few value seeds."""
    seeded = (replace(case, backend=backend, seed=case.seed + offset) for offset in range(SEEDS))
    return {each.kind for again in seeded for each in runner.verdict(again).failures}


def pairs_of_defects(seed: int) -> Iterator[str]:
    """All pairs that can be planted together, in an order that `seed` shuffles."""
    pairs = [each for each in itertools.combinations(DEFECTS, 2) if each[0].backend == each[1].backend]
    random.Random(seed).shuffle(pairs)
    for first, second in pairs:
        name = f"{first.backend}+{first.name}+{second.name}"
        try:
            resolve(name)
        except UnknownBackend:
            continue
        yield name


def _summary(found: Sequence[Measured]) -> list[tuple[str, str]]:
    pairs, single = [each for each in found if each.pair], [each for each in found if not each.pair]
    causes = sum(len(each.causes) for each in found)
    real = 2 * len(pairs) + len(single)
    return [
        ("pairs found apart", f"{sum('apart' in each.outcome for each in pairs)} of {len(pairs)}"),
        ("pairs merged", str(sum("merged" in each.outcome for each in pairs))),
        ("split", str(sum("split" in each.outcome for each in found))),
        ("findings per cause", f"{sum(each.findings for each in found) / max(1, causes):.2f}"),
        ("causes per planted defect", f"{causes / max(1, real):.2f}"),
        (
            "cases per second",
            f"{sum(each.cases for each in found) / max(1e-3, sum(each.seconds for each in found)):.0f}",
        ),
    ]


@click.command()
@click.option("--backend", "backends", multiple=True, help="These backends, instead of pairs of planted defects.")
@count_option("--pairs", 12, "Pairs of planted defects.")
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Pairs to leave out, of those drawn by --seed.")
@click.option("--seconds", type=click.FloatRange(min=1), help="Seconds of each campaign, instead of --examples.")
@count_option("--examples", 3000, "Examples of each campaign.")
@json_option
@seed_option
def main(
    *,
    backends: tuple[str, ...],
    pairs: int,
    skip: int,
    seconds: float | None,
    examples: int,
    json_file: Path | None,
    seed: int,
) -> None:
    """Search backends with planted defects, and count findings, causes, and wrong merges and splits."""
    chosen = backends or tuple(itertools.islice(pairs_of_defects(seed), skip, skip + pairs))
    found = []
    with Runner() as runner:
        for backend in chosen:
            each = measured(runner, backend, seconds=seconds, examples=examples, seed=seed)
            print(*_cells(each), sep="\t", flush=True)
            found.append(each)
            if json_file is not None:
                json_file.write_text(json.dumps([asdict(each) for each in found], indent=1))
    columns = ("backend", "findings", "causes", "whose", "needs", "outcome", "cases", "seconds")
    show("Causes of planted defects", columns, [_cells(each) for each in found])
    show("All", ("", ""), _summary(found))


def _cells(each: Measured) -> list[str]:
    numbers = (str(each.findings), str(len(each.causes)), " ".join(each.causes), " ".join(each.needs))
    return [each.backend, *numbers, each.outcome, str(each.cases), f"{each.seconds:.0f}"]


if __name__ == "__main__":
    main()
