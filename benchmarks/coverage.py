"""Speed of coverage: how many pairs of features a number of drawn cases reaches. The cases are not run."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from flat_cases import Uniform, flat_case, hypothesis_cases
from hypothesis.strategies import SearchStrategy
from measurement import backends_option, count_option, json_option, seed_option, show

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.search.examples import derive_seed, run_examples
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.strategies.cases import cases
from attnfuzz.strategies.coverage import Pair, choose_lean, pairs_of, possible_pairs

SLICE = 250
CHECKPOINTS = (250, 500, 1000, 2000, 5000, 10000, 20000)

Slices = Iterator[list[Case]]
Generator = Callable[[Capability, str, int, set[Pair]], Slices]


@click.command()
@backends_option(default=("trtllm_mha",))
@count_option("--examples", 20000, "Cases of each generator and backend.")
@json_option
@seed_option
def main(*, backends: tuple[str, ...], examples: int, json_file: Path | None, seed: int) -> None:
    """Show how many possible pairs of features are still missing, for four ways to draw cases."""
    marks = [mark for mark in CHECKPOINTS if mark < examples] + [examples]
    numbers: dict[str, dict[str, list[int]]] = {}
    for backend in backends:
        can = resolve(backend).capability
        possible = possible_pairs(can)
        numbers[backend] = {words: _missing(generator, backend, marks, seed) for words, generator in GENERATORS.items()}
        rows = [
            (words, *(f"{missing:,}" for missing in row), f"{1 - row[-1] / len(possible):.2%}")
            for words, row in numbers[backend].items()
        ]
        columns = (f"{len(possible):,} possible", *(f"{mark:,}" for mark in marks), "reached")
        show(f"{backend}: possible pairs of features that are still missing, by number of examples", columns, rows)
    if json_file is not None:
        json_file.write_text(json.dumps(numbers, indent=2))


def _missing(generator: Generator, backend: str, marks: list[int], seed: int) -> list[int]:
    """Return how many possible pairs are still missing at each of `marks`."""
    can = resolve(backend).capability
    possible = possible_pairs(can)
    reached: set[Pair] = set()
    missing: list[int] = []
    count = 0
    for drawn in generator(can, backend, seed, reached):
        for case in drawn:
            reached |= pairs_of(case)
            count += 1
            if count == marks[len(missing)]:
                missing.append(len(possible - reached))
                if len(missing) == len(marks):
                    return missing
    raise AssertionError("generators are endless")


def _drawn(strategy: SearchStrategy[Case], seed: int) -> list[Case]:
    drawn: list[Case] = []
    run_examples(strategy, drawn.append, examples=SLICE, seed_of=seed)
    return drawn


def _leaning(can: Capability, backend: str, seed: int, reached: set[Pair]) -> Slices:
    index = 0
    while True:
        part = derive_seed(seed, backend, index)
        lean = choose_lean(possible_pairs(can) - reached, reached, part)
        yield _drawn(cases(can, backend, lean), part)
        index += 1


def _not_leaning(can: Capability, backend: str, seed: int, _reached: set[Pair]) -> Slices:
    index = 0
    while True:
        yield _drawn(cases(can, backend), derive_seed(seed, backend, index))
        index += 1


def _flat(can: Capability, backend: str, seed: int, _reached: set[Pair]) -> Slices:
    strategy = hypothesis_cases(can, backend)
    index = 0
    while True:
        yield _drawn(strategy, derive_seed(seed, backend, index))
        index += 1


def _uniform(can: Capability, backend: str, seed: int, _reached: set[Pair]) -> Slices:
    source = Uniform(seed)
    while True:
        case = flat_case(source, can, backend)
        if can.can_run(case):
            yield [case]


GENERATORS: dict[str, Generator] = {
    "attnfuzz, biased": _leaning,
    "attnfuzz, unbiased": _not_leaning,
    "Hypothesis, field by field": _flat,
    "uniform, field by field": _uniform,
}


if __name__ == "__main__":
    main()
