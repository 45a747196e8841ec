"""Cases per second, beside the number that a recorded ratio to the machine's own speed predicts."""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

import torch

from attnfuzz.harness.doctor.measurement import Measurement, information
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import drawn_cases, run_examples
from attnfuzz.reference.any_case import AnyCase

_SEED = 1
_WARM = 10
"""Cases before the measurement, which load libraries."""
_SECONDS = 4.0
_MOST_CASES = 1_000_000
_OPERATIONS = 1_000
"""Loops of `small_operations` between two looks at the clock."""


class Recorded(NamedTuple):
    """A measurement on another machine: judged cases per second, small operations per second there, and its name."""

    cases: float
    operations: float
    machine: str


RECORDED: Final = {
    "trtllm_mha": Recorded(cases=30.1, operations=71_000, machine="2 cores of an AMD EPYC, torch 2.13"),
    "cuda_fixup": Recorded(cases=32.4, operations=49_639, machine="an H200 and 16 cores of an Intel Xeon, torch 2.11"),
}
"""By backend: `rate` and `small_operations` on one machine, measured by `attnfuzz doctor`."""


class _Over(BaseException):
    """Raised when the time is over."""


def small_operations(seconds: float = 1.0) -> float:
    """Return how many loops of five small operations of torch this process makes per second on one thread.

    A case consists of hundreds of these (docs/explanation/performance.md), so its time follows theirs.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one, other = torch.ones(8, 16, dtype=torch.float64), torch.ones(16, 8, dtype=torch.float64)
        start, done = time.perf_counter(), 0
        while (now := time.perf_counter()) < start + seconds:
            for _ in range(_OPERATIONS):
                torch.empty(8, 8, dtype=torch.float64).copy_(one @ other).softmax(-1).sum(-1)
            done += _OPERATIONS
    finally:
        torch.set_num_threads(threads)
    return done / (now - start)


def rate(backend: str, runner: Runner, seconds: float = _SECONDS) -> float:
    """Return the drawn cases of a backend that one job judges per second, without its start. Raises like `verdict`."""
    done, began = 0, 0.0

    def visit(case: AnyCase) -> None:
        nonlocal done, began
        runner.verdict(case)
        done += 1
        now = time.perf_counter()
        if done == _WARM:
            began = now
        elif done > _WARM and now > began + seconds:
            raise _Over

    with suppress(_Over):
        run_examples(drawn_cases(backend), visit, examples=_MOST_CASES, seed_of=_SEED)
    return (done - _WARM) / (time.perf_counter() - began)


def pace(backend: str, runner: Runner) -> Iterator[Measurement]:
    """Yield the rate of a backend that passes, and the one expected."""
    operations = small_operations()
    found = rate(backend, runner)
    words = f"{backend}: {found:.1f} with one job"
    here = f"{operations:,.0f} loops of small operations of torch per second here"
    recorded = RECORDED.get(backend)
    if recorded is None:
        yield information("cases per second", f"{words}; nothing is recorded to compare it with ({here})")
        return
    due = recorded.cases / recorded.operations * operations
    yield information(
        "cases per second",
        f"{words}; expected {due:.1f}, as {recorded.cases:.1f} were recorded at {recorded.operations:,.0f} loops of "
        f"small operations of torch per second ({recorded.machine}), and here are {operations:,.0f}",
    )
