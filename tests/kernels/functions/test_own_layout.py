"""The example of a kernel with a cache layout of its own."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from repetition import examples
from small_cases import HEADS, drawn, lighter, passed, run, step

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.functions.function_backend import FunctionBackend
from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.reference.case import Case, Mode
from attnfuzz.reference.geometry import KvLayout

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "own_layout.py"


def test_the_example_is_short_and_passes() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 40
    geometry = replace(HEADS, kv_layout=KvLayout.NHD, head_dim_qk=64, head_dim_vo=64)
    steps = (step(Mode.EXTEND, (2, 9), (3, 3), (1, 0)), step(Mode.DECODE, (1, 8)))
    passed(Case(backend=f"{EXAMPLE}:MINE", geometry=geometry, steps=steps))


@pytest.mark.slow
@examples(20, 100)
def test_the_example_passes_drawn_cases(count: int) -> None:
    for case in lighter(drawn(f"{EXAMPLE}:MINE", count)):
        passed(case)


STRAY = "    import ctypes\n\n    ctypes.string_at(keys.data_ptr() + keys.nbytes, 1)\n    group = "


@pytest.mark.slow
def test_a_stray_read_of_the_kernels_own_cache_is_found(runner: Runner, tmp_path: Path) -> None:
    """A worker dies of it."""
    file = tmp_path / "mine.py"
    file.write_text(EXAMPLE.read_text().replace("    group = ", STRAY))
    geometry = replace(HEADS, kv_layout=KvLayout.NHD, head_dim_qk=64, head_dim_vo=64)
    case = Case(backend=f"{file}:MINE", geometry=geometry, steps=(step(Mode.DECODE, (1, 9)),))
    (failure,) = runner.verdict(case).failures
    assert (failure.kind, failure.place) == (Kind.ILLEGAL_ACCESS, "keys")


def refuse(**_: Any) -> dict[str, Any]:
    raise Unsupported("pages that are not consecutive")


def attend(**_: Any) -> None: ...


REFUSING = FunctionBackend(attend, arrange=refuse)


def test_a_layout_that_can_not_hold_a_case_makes_it_unsupported() -> None:
    geometry = replace(HEADS, kv_layout=KvLayout.NHD)
    verdict = run(Case(backend=f"{__file__}:REFUSING", geometry=geometry, steps=(step(Mode.DECODE, (1, 9)),)))
    assert (verdict.unsupported, verdict.observations) == ("pages that are not consecutive", ())
