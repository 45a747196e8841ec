"""scripts/gpu.sh, as far as it can be tried without a GPU: its usage, and that what it names exists."""

import re
import subprocess
from pathlib import Path

import pytest

from attnfuzz.harness.backends.registry import resolve

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "gpu.sh"

STAGES = ("setup", "test", "bench", "campaign")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["compile"]])
def test_its_usage_tells_the_stages(arguments: list[str]) -> None:
    done = subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    for stage in STAGES:
        assert f"scripts/gpu.sh {stage}" in done.stdout


def test_the_backends_of_its_quick_set_exist() -> None:
    (quick,) = re.findall(r'QUICK=\$\{QUICK:-"([^"]+)"\}', SCRIPT.read_text())
    for name in quick.split():
        assert resolve(name).name == name


def test_its_benchmarks_exist_and_fit_ten_minutes() -> None:
    measured = re.findall(r"^  measure (\d+) (\w+) ", SCRIPT.read_text(), flags=re.MULTILINE)
    assert sum(int(limit) for limit, _ in measured) <= 600
    for _, benchmark in measured:
        assert (ROOT / "benchmarks" / f"{benchmark}.py").is_file()
    on_a_gpu = {path.stem for path in (ROOT / "benchmarks").glob("gpu_*.py")} - {"gpu_measurement", "gpu_deadly"}
    assert {benchmark for _, benchmark in measured} == {*on_a_gpu, "deaths"}
