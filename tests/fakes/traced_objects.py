"""Stands for FlashInfer's classes: cases on fake ones, and their traces."""

from pathlib import Path
from typing import Any

from small_cases import step

from attnfuzz.harness.backends.registry import load
from attnfuzz.harness.calls.trace import assemble
from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case import Case, Launch, Mode, Scales, Step


def of_two_requests(backend: str, *steps: Step, **fields: Any) -> Case:
    """Two requests that every class takes, or these steps."""
    can = load(backend).capability
    mode = Mode.DECODE if Mode.DECODE in can.modes else Mode.EXTEND
    q_len = 1 if mode is Mode.DECODE else 2
    return Case(
        backend=backend,
        geometry=can.buckets[0].simplest,
        steps=steps or (step(mode, (q_len, 40), (q_len, 21)),),
        **{"scales": Scales(granularity=can.granularities[0]), **fields},
    )


def in_graph(backend: str) -> Case:
    """A graph of two decodes, and its replay."""
    capture = Step(mode=Mode.DECODE, requests=(), padded_tokens=2, tokens_per_request=1, launch=Launch.CAPTURE)
    return of_two_requests(backend, capture, step(Mode.DECODE, (1, 40), (1, 21), launch=Launch.REPLAY))


def traced(case: AnyCase, folder: Path, backend: Backend | None = None) -> tuple[Verdict, CallCase]:
    """The verdict on a case in this process, and the calls of its last step, read as from a file."""
    path = folder / "trace"
    with path.open("w") as file:
        verdict = Execution(Task(case=case, backend=case.backend), lambda _: None, file, backend=backend).run()
    calls = assemble(path, case)
    assert calls is not None
    calls.validate()
    read = case_file.decode(case_file.encode(calls))
    assert read == calls
    assert isinstance(read, CallCase)
    return verdict, read
