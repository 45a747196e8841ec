"""Pools with a hole are in scripts: addresses without memory, so that offsets exceed 2^31."""

import io
from contextlib import redirect_stdout
from typing import Any

import pytest
from harness_cases import GEOMETRY
from msgspec.structs import replace

from attnfuzz.harness.calls.trace import Untraceable
from attnfuzz.harness.export import Exporter
from attnfuzz.harness.reduce import reduce
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.kernels.native import build
from attnfuzz.reference.case import Case, Mode, Pages, Request, Step

HOLE = 1 << 14
CASE = Case(
    backend="trtllm_mha",
    geometry=replace(GEOMETRY, q_heads=8, kv_heads=8, head_dim_qk=128, head_dim_vo=128, page_size=64),
    steps=(Step(mode=Mode.EXTEND, requests=(Request(0, 1, 70),), padded_tokens=1),),
    pages=Pages(hole=HOLE),
)


def test_a_script_has_the_hole_and_finds_nothing_wrong_with_a_correct_kernel(runner: Runner) -> None:
    text = Exporter(CASE, runner).script()
    assert "hollow(" in text
    assert len(text) < 2_000_000
    script: dict[str, Any] = {"__name__": "script"}
    exec(text, script)  # noqa: S102 - the script that we made
    script["native"] = build.load
    with redirect_stdout(io.StringIO()) as printed:
        wrong = script["run"]()
    assert not wrong, printed.getvalue()


def test_a_wrong_answer_beyond_the_hole_shows(runner: Runner) -> None:
    text = Exporter(CASE, runner).script()
    script: dict[str, Any] = {"__name__": "script"}
    exec(text.replace("bmm2_scale=1.0", "bmm2_scale=1.5", 1), script)  # noqa: S102 - the script that we made
    script["native"] = build.load
    with redirect_stdout(io.StringIO()):
        assert script["run"]()


def test_calls_to_run_have_no_hole(runner: Runner) -> None:
    with pytest.raises(Untraceable, match="has no memory"):
        runner.trace(CASE)


@pytest.mark.parametrize("threshold", [1 << 16, 12_345, 1])
def test_a_hole_is_minimized_to_the_size_that_the_failure_needs(threshold: int) -> None:
    large = replace(CASE, pages=Pages(hole=1 << 26))
    small = reduce(large, lambda case: case.pages.hole >= threshold)
    assert small.pages.hole == threshold
