"""Cost of comparing the whole KV cache after a write, relative to attention alone on the same cases."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import click
from in_process import use_one_thread
from measurement import count_option, sample, seed_option, show
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.inside import forwards
from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.cache_writes.then_attend import WriteThenAttend
from attnfuzz.kernels.cache_writes.writer_session import WriterSession
from attnfuzz.kernels.interface.backend import Backend, WrittenCache
from attnfuzz.reference.case import Case

PAIRS = (
    "native:reshape_and_cache,trtllm_mha",
    "native:store_cache,trtllm_mha",
    "native:concat_and_cache,trtllm_mla",
)
PARTS = {
    "copying": (WriterSession, "contents"),
    "contents due": (WrittenCache, "due"),
    "comparing": (forwards, "judge_written"),
}
COLUMNS = ("pair", "attention\nalone", "write and\nattention", *PARTS, "all three, of\nattention alone")


@click.command()
@count_option("--cases", 100, "Drawn cases of each pair.")
@count_option("--rounds", 3, "How often each case runs; the least time counts.")
@seed_option
def main(*, cases: int, rounds: int, seed: int) -> None:
    """Run drawn cases as write-attention pairs and as attention alone, in turn and in-process. Times are CPU times."""
    use_one_thread()
    rows = []
    for name in PAIRS:
        pair = resolve(name)
        assert isinstance(pair, WriteThenAttend)
        pair.prepare(lambda _: None)
        drawn = [replace(case, relation=None) for case in sample(name, cases, seed)]
        costs = [_least([_costs(pair, case) for _ in range(rounds)]) for case in drawn]
        rows.append(_row(name, {part: sum(each[part] for each in costs) / cases for part in costs[0]}))
    show("Comparing pools", COLUMNS, rows)


def _row(name: str, mean: dict[str, float]) -> tuple[str, ...]:
    share = sum(mean[part] for part in PARTS) / mean["attention"]
    times = (f"{mean[part] * 1e3:.2f} ms" for part in ("attention", "pair", *PARTS))
    return (name, *times, f"{share:.0%}")


def _least(runs: list[dict[str, float]]) -> dict[str, float]:
    return {part: min(run[part] for run in runs) for part in runs[0]}


def _costs(pair: WriteThenAttend, case: Case) -> dict[str, float]:
    """Return the CPU seconds of a case as a pair, as attention alone, and in each part of the pair."""
    attention = _seconds(pair.reader, case)
    with _timed() as parts:
        whole = _seconds(pair, case)
    return {"attention": attention, "pair": whole, **parts}


def _seconds(backend: Backend, case: Case) -> float:
    """Return the CPU seconds of a case, which must pass."""
    start = time.process_time()
    task = Task(case=replace(case, backend=backend.name), backend=backend.name)
    verdict = Execution(task, lambda _: None, backend=backend).run()
    seconds = time.process_time() - start
    if verdict.failures:
        raise click.ClickException(f"{backend.name} fails: {verdict.failures[0].message}")
    return seconds


@contextmanager
def _timed() -> Iterator[dict[str, float]]:
    """Measure the CPU seconds spent in each of PARTS while this context is open."""
    seconds = dict.fromkeys(PARTS, 0.0)
    with ExitStack() as patches:
        for part, (owner, function) in PARTS.items():
            patches.enter_context(patch.object(owner, function, _counted(getattr(owner, function), part, seconds)))
        yield seconds


def _counted(function: Callable[..., Any], part: str, seconds: dict[str, float]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        start = time.process_time()
        try:
            return function(*arguments)
        finally:
            seconds[part] += time.process_time() - start

    return counted


if __name__ == "__main__":
    main()
