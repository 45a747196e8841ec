"""Shrinking of planted defects: the final size, the cost, and whether the clue to each defect survives.

The clue is the subject of the defect's class: a window that cuts keys off, sinks, a replayed graph. It counts as lost
if the first failing case has it and the smallest does not. The table also shows the features that the first case needs
to fail, by ablation, and which of them the smallest case no longer needs.

A smallest case is not minimal if it also fails without one of its features, or without two of them: with plain values,
in order, of one request.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

import click
from measurement import count_option, json_option, quantile, seed_option, show, slices_of
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.reduce.ablation import CLUES, CONTENTS, FEATURES, FRESH_SEEDS, SHAPE, ablations, needed, reseeded
from attnfuzz.harness.sandbox.case_runner import OneByOne
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import drawn_cases
from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.messages import AnyMessage, Caught, ShrinkBudget, Suspect
from attnfuzz.harness.verdict.failures import DEATHS, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.kernels.defects.catalogue import DEFECTS, backend_name
from attnfuzz.kernels.defects.defect import BugClass, Defect
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.features.row import Feature
from attnfuzz.strategies.coverage import features_of

ROWS = 16
"""A case with fewer query rows is small. The aim is that 95% of the defects end up small."""

OF_CLASS: dict[BugClass, frozenset[str]] = {
    BugClass.WINDOW: frozenset({"window=cuts keys off"}),
    BugClass.SINKS: frozenset({"sinks=yes"}),
    BugClass.CAPTURE_AND_REPLAY_DIFFER: frozenset({"launch=first replay", "launch=replayed again"}),
}

PLAIN = frozenset(FEATURES.values()) - CONTENTS - SHAPE - {FEATURES["16 bits"]} | {FEATURES["several requests"]}
"""Features without which a case is plainer. Sizes are left out: without several pages, a page may be larger."""


@dataclass(frozen=True)
class Size:
    """The size of a case: query rows and requests over all steps, KV tokens of all slots, and steps."""

    rows: int
    requests: int
    keys: int
    steps: int

    @classmethod
    def of(cls, case: Case) -> "Size":
        """Return the size of a case. Rows of padding count."""
        return cls(
            rows=sum(step.padded_tokens for step in case.steps),
            requests=sum(len(step.requests) for step in case.steps),
            keys=sum(case.slot_lengths().values()),
            steps=len(case.steps),
        )


@dataclass(frozen=True)
class Measured:
    """The results for one defect: how it failed, its size before and after, the cost of shrinking, and its clue."""

    defect: str
    kind: str
    before: Size
    after: Size
    runs: int
    deaths: int
    seconds: float
    clue: str
    needed: tuple[str, ...]
    given_up: tuple[str, ...]
    not_needed: tuple[str, ...]
    """The first feature, or pair of features, without which the smallest case fails as well."""
    first: str
    smallest: str

    @property
    def cells(self) -> list[str]:
        """The cells of a table row."""
        sizes = (self.after.rows, self.after.requests, self.after.keys, self.after.steps)
        return [
            self.defect,
            self.kind,
            str(self.before.rows),
            *map(str, sizes),
            str(self.runs),
            str(self.deaths),
            f"{self.seconds:.1f}",
            self.clue,
            ", ".join(f"-{name}" if name in self.given_up else name for name in self.needed),
            ", ".join(self.not_needed),
        ]


class _Counted(OneByOne):
    """A runner that counts its runs, and those that kill a worker."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.runs = self.deaths = 0

    def verdict(self, case: Case) -> Verdict:
        verdict = self._runner.verdict(case)
        self.runs += 1
        self.deaths += any(each.kind in DEATHS for each in verdict.failures)
        return verdict

    def renew(self) -> None:
        self._runner.renew()


def measured(runner: Runner, defect: Defect, seed: int, examples: int, budget: ShrinkBudget) -> Measured | None:
    """Find a defect and shrink its case, as a campaign does. Return None if it is not found."""
    counted = _Counted(runner)
    backend = backend_name(defect)
    began: list[tuple[int, int, float]] = []
    found: list[Caught] = []

    def tell(message: AnyMessage) -> None:
        if isinstance(message, Suspect | Caught):
            began.append((counted.runs, counted.deaths, time.perf_counter()))
        if isinstance(message, Caught) and not (message.recurrence and message.recurrence.seen_once):
            found.append(message)

    for task in slices_of(backend, examples=examples, seed=seed):
        own = replace(task, shrink=budget, first_only=True)
        Hunt(own, counted, tell, capability=resolve(backend).capability).run(drawn_cases(backend))
        if found:
            return _of(defect, runner, found[0], *(after - at for at, after in zip(*began[-2:], strict=True)))
    return None


def _of_steps(case: AnyCase) -> Case:
    assert isinstance(case, Case)
    return case


def _of(defect: Defect, runner: Runner, caught: Caught, runs: int, deaths: int, seconds: float) -> Measured:
    first, last = _of_steps(caught.first), _of_steps(caught.case)
    at_first, at_last = (_needed(runner, caught.fingerprint, case) for case in (first, last))
    return Measured(
        defect=defect.name,
        kind=caught.observation.kind.value,
        before=Size.of(first),
        after=Size.of(last),
        runs=runs,
        deaths=deaths,
        seconds=round(seconds, 2),
        clue=_clue(defect, caught),
        needed=tuple(sorted(at_first)),
        given_up=tuple(sorted(at_first - at_last)),
        not_needed=next(_failing_without(runner, caught), ()),
        first=case_file.encode(caught.first).decode(),
        smallest=case_file.encode(caught.case).decode(),
    )


def _needed(runner: Runner, fingerprint: Fingerprint, case: Case) -> frozenset[str]:
    """Return the clues without which a case does not fail in this way."""
    capability = resolve(case.backend).capability
    features = needed(
        case,
        lambda variant: fingerprint.among(runner.verdict(variant).failures) is not None,
        allowed=lambda variant: capability.why_not(variant) is None,
        among=CLUES,
    )
    return frozenset(feature.name for feature in features)


def _failing_without(runner: Runner, caught: Caught) -> Iterator[tuple[str, ...]]:
    """Yield single features, then pairs, without which the smallest case fails in the same way."""
    smallest, capability = _of_steps(caught.case), resolve(caught.case.backend).capability

    def without(case: Case, feature: Feature) -> tuple[Case, ...]:
        found = ablations(case, allowed=lambda each: capability.why_not(each) is None, among={feature})
        return tuple(variant for each in found for variant in each.variants)

    def fails(case: Case) -> bool:
        again = reseeded(case, FRESH_SEEDS + 1)
        return any(caught.fingerprint.among(runner.verdict(each).failures) is not None for each in again)

    for feature in sorted(PLAIN):
        if any(map(fails, without(smallest, feature))):
            yield (feature.name,)
    for one, other in itertools.permutations(sorted(PLAIN), 2):
        variants = (variant for plainer in without(smallest, one)[:1] for variant in without(plainer, other))
        if any(map(fails, variants)):
            yield one.name, other.name


def _clue(defect: Defect, caught: Caught) -> str:
    """Return whether the smallest case kept the clue to the defect's class, or "" if the first one had none."""
    clues = OF_CLASS.get(defect.bug_class, frozenset())
    there, left = (features_of(_of_steps(case)) & clues for case in (caught.first, caught.case))
    return "" if not there else "kept" if left else f"lost {', '.join(sorted(there))}"


def _chosen(backends: Sequence[str], names: Sequence[str]) -> list[Defect]:
    # Sizes and clues are those of attention and writes.
    of_steps = (each for each in DEFECTS if isinstance(resolve(each.backend).capability, Capability))
    return [each for each in of_steps if (each.name in names if names else not backends or each.backend in backends)]


def _summary(found: Sequence[Measured]) -> list[tuple[str, str]]:
    columns: tuple[tuple[str, Callable[[Measured], float]], ...] = (
        ("rows", lambda each: each.after.rows),
        ("requests", lambda each: each.after.requests),
        ("KV tokens", lambda each: each.after.keys),
        ("steps", lambda each: each.after.steps),
        ("runs", lambda each: each.runs),
        ("seconds", lambda each: each.seconds),
    )
    lines = [
        (f"{name}: median, 95%, most", f"{median(values):.4g}, {quantile(values, 0.95):.4g}, {max(values):.4g}")
        for name, of in columns
        if (values := [of(each) for each in found])
    ]
    fatal = [each.deaths for each in found if each.kind in DEATHS]
    small = sum(each.after.rows < ROWS for each in found)
    clues = [each.clue for each in found if each.clue]
    named = sum(len(each.needed) for each in found)
    return [
        *lines,
        ("deaths, mean over failures that kill a worker", f"{fmean(fatal):.1f} of {len(fatal)}" if fatal else "none"),
        (f"below {ROWS} rows", f"{small} of {len(found)}"),
        ("clues kept", f"{clues.count('kept')} of {len(clues)}"),
        (
            "smallest cases that fail without a feature",
            f"{sum(len(each.not_needed) == 1 for each in found)} of {len(found)}",
        ),
        ("without two", f"{sum(len(each.not_needed) == 2 for each in found)} of {len(found)}"),
        ("needed features given up", f"{sum(map(len, (each.given_up for each in found)))} of {named}"),
    ]


@click.command()
@click.option("--backend", "backends", multiple=True, help="Only defects of this backend.")
@click.option("--defect", "names", multiple=True, help="Only this defect.")
@click.option(
    "--part", type=(int, int), default=(0, 1), metavar="I N", help="Only every N-th defect, from the I-th on."
)
@count_option("--examples", 3000, "Examples after which the search for a defect gives up.")
@count_option("--runs", ShrinkBudget().runs, "Runs that shrinking may take, as in a campaign.")
@count_option("--seconds", int(ShrinkBudget().seconds), "Seconds that shrinking may take: more on a busy machine.")
@json_option
@seed_option
def main(
    *,
    backends: tuple[str, ...],
    names: tuple[str, ...],
    part: tuple[int, int],
    examples: int,
    runs: int,
    seconds: int,
    json_file: Path | None,
    seed: int,
) -> None:
    """Find planted defects and shrink their cases, as a campaign does."""
    chosen = _chosen(backends, names)[part[0] :: part[1]]
    found = []
    with Runner() as runner:
        for defect in chosen:
            each = measured(runner, defect, seed, examples, ShrinkBudget(runs=runs, seconds=seconds))
            if each is None:
                print(f"{defect.name}: not found in {examples} examples", flush=True)
                continue
            print(*each.cells, sep="\t", flush=True)
            found.append(each)
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(each) for each in found], indent=1))
    found.sort(key=lambda each: -each.after.rows)
    columns = (
        "defect",
        "failure",
        "rows before",
        "rows",
        "requests",
        "KV",
        "steps",
        "runs",
        "deaths",
        "seconds",
        "clue",
        "needs",
        "fails without",
    )
    show("Planted defects, made small", columns, [each.cells for each in found])
    show("All", ("", ""), _summary(found))


if __name__ == "__main__":
    main()
