"""Calls of FlashAttention and of wrappers by an engine: right ones agree with their arguments, others are blamed."""

from pathlib import Path

import engine_functions
import pytest
from harness_cases import GEOMETRY, decode_case
from msgspec.structs import replace

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.triage.evidence import collect
from attnfuzz.harness.triage.run import blamed_for
from attnfuzz.harness.verdict.blame import Blame
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.geometry import KvLayout

pytestmark = pytest.mark.slow

KINDS = ("varlen", "with_kvcache", "paged_run")


def engine(name: str) -> str:
    return f"{Path(engine_functions.__file__)}:{name}"


def prefill_case(backend: str) -> Case:
    requests = (Request(0, 3, 9), Request(1, 1, 4), Request(2, 2, 2))
    step = Step(mode=Mode.EXTEND, requests=requests, padded_tokens=6)
    return Case(backend=backend, geometry=replace(GEOMETRY, kv_layout=KvLayout.NHD), steps=(step,))


@pytest.mark.parametrize("kind", KINDS)
def test_a_right_call_passes_and_agrees_with_its_arguments(runner: Runner, kind: str) -> None:
    for case in (decode_case(engine(kind), 6, 3, 9), prefill_case(engine(kind))):
        verdict, calls = runner.trace(case)
        assert (verdict.unsupported, verdict.failures) == (None, ())
        assert calls is not None
        found = collect(calls, runner)
        assert (found.breaches, found.obstacles) == ((), ())
        assert [each.failure for each in found.asked] == [None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [decode_case, prefill_case])
@pytest.mark.parametrize(
    ("mistake", "words"),
    [("one_key_less", "passes wrong arguments"), ("other_page", "page"), ("stale", "breaks the contract of")],
)
def test_a_planners_mistake_is_the_callers(runner: Runner, kind: str, case: object, mistake: str, words: str) -> None:
    backend = engine(f"{kind}_{mistake}")
    made = prefill_case(backend) if case is prefill_case else decode_case(backend, 6, 3, 9)
    (failure, *_) = runner.verdict(made).failures
    found = blamed_for(made, failure, runner)
    assert found.fault is Blame.CALLER, found
    assert words in " ".join((found.conclusion, *found.sentences, *(each.text for each in found.differences)))
