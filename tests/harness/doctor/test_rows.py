"""Rows of an examination that need no process."""

import re
from collections.abc import Iterator
from pathlib import Path

import fake_nvml
import pytest

from attnfuzz.harness.doctor import machine
from attnfuzz.harness.doctor.bindings import first_on
from attnfuzz.harness.doctor.machine import lacking
from attnfuzz.harness.doctor.measurement import Mark, Measurement, guarded, judged
from attnfuzz.harness.doctor.pace import RECORDED, small_operations
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.reference.user_error import UserError


@pytest.mark.parametrize("arch", [Arch.BLACKWELL, Arch.BLACKWELL_ULTRA])
def test_the_calls_made_first_on_blackwell_are_those_of_trtllm_gen(arch: Arch) -> None:
    kinds = ("mha", "mha_windowed", "mla", "token_sparse")
    assert first_on(arch) == tuple(f"blackwell:trtllm_{kind}" for kind in kinds)


def test_the_reasons_for_which_backends_do_not_run_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.install(monkeypatch)
    rows = list(lacking())
    reasons = [row.result.partition(" (")[0] for row in rows]
    assert "needs a GPU: NVIDIA's driver finds no device" in reasons
    assert len(set(reasons)) == len(reasons), "one row for each package that is missing"


@pytest.mark.parametrize(
    ("release", "words"),
    [
        ("0.7.1", ", older than those tested"),
        ("0.7.2.post1", ""),
        ("0.7.4", ""),
        ("0.8.0", ", newer than those tested"),
    ],
)
def test_a_flashinfer_that_is_not_tested_has_a_line(monkeypatch: pytest.MonkeyPatch, release: str, words: str) -> None:
    fake_nvml.install(monkeypatch)
    monkeypatch.setattr(machine, "environment", lambda: {"flashinfer-python": release})
    row = next(machine.versions())
    assert row.result.partition(" (")[0] == release + words


def test_the_releases_of_flashinfer_that_are_tested_are_those_of_make_matrix() -> None:
    script = (Path(__file__).parents[3] / "scripts" / "versions.sh").read_text()
    sets = re.search(r"SETS=.*?\"(.*)\"", script)
    assert sets
    assert machine.TESTED["flashinfer-python"] == tuple(each.partition(",")[2] for each in sets[1].split())


@pytest.mark.parametrize(("error", "reported"), [(UserError("no GPU"), False), (ZeroDivisionError("division"), True)])
def test_an_error_ends_its_part_with_a_row_that_is_not_measured(error: Exception, *, reported: bool) -> None:
    def rows() -> Iterator[Measurement]:
        yield judged("first", "seen", works=True)
        raise error

    warned: list[str] = []
    first, second = guarded("part", rows, warned.append)
    assert first.outcome is Mark.WORKS
    assert second.title == "part"
    assert second.outcome is Mark.NOT_MEASURED
    assert str(error) in second.result
    assert bool(warned) is reported


def test_the_expected_rate_scales_with_small_operations() -> None:
    recorded = RECORDED["trtllm_mha"]
    assert 1e-5 < recorded.cases / recorded.operations < 1e-2
    assert small_operations(0.01) > 1_000
