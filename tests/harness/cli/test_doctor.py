"""The table of `attnfuzz doctor`, its exit codes, and its answer in JSON, of parts that are measured elsewhere."""

from collections.abc import Iterator

import msgspec
import pytest
from command_line import Attnfuzz

from attnfuzz.harness.cli import doctor
from attnfuzz.harness.cli.answers import Examination
from attnfuzz.harness.doctor.measurement import Measurement, information, judged, not_measured
from attnfuzz.kernels.cuda import visible
from attnfuzz.kernels.interface.toolchain import BUILT

pytestmark = pytest.mark.slow
"""The command examines this machine in processes."""

WORDS = "a result of many words that is wider than a terminal of eighty columns, and is folded below itself"


@pytest.fixture(autouse=True)
def _parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows() -> Iterator[Measurement]:
        yield information("python", "3.11")
        yield judged("guard pages on the CPU", WORDS, works=True)
        yield not_measured("nvcc", "none on PATH")

    # The command sets it for its own process.
    monkeypatch.setenv(BUILT, "0")
    monkeypatch.setattr(doctor, "_everywhere", lambda _: [doctor._Part("all", rows)])
    monkeypatch.setattr(visible, "visible", lambda: ())


def test_a_table_is_printed_row_by_row_and_fits_a_terminal(attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = attnfuzz("doctor")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["python", "guard", "nvcc"]
    assert "not measured: none on PATH" in ran.out


def test_a_row_that_fails_is_the_exit_code_and_all_that_quiet_prints(
    attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = judged("planted defects", "10 of 11 found", works=False)
    monkeypatch.setattr(doctor, "_on_gpu", lambda _: [doctor._Part("GPU", lambda: iter([failing]))])
    monkeypatch.setattr(visible, "visible", lambda: (H200,))
    ran = attnfuzz("doctor", "--quiet")
    assert ran.code == 1
    assert ran.out.split() == ["planted", "defects", "FAILS", "10", "of", "11", "found"]


def test_it_answers_in_json(attnfuzz: Attnfuzz) -> None:
    found = msgspec.json.decode(attnfuzz("doctor", "--json", "-").out, type=Examination)
    assert [(row.title, row.outcome) for row in found.rows] == [
        ("python", ""),
        ("guard pages on the CPU", "ok"),
        ("nvcc", "-"),
    ]


H200 = visible.Gpu(index=0, name="NVIDIA H200", capability="9.0", memory=1 << 37, uuid="GPU-1")
