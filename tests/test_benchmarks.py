"""The benchmarks run, and print what they promise: each with the smallest settings, and no word on speed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign_events import started
from forked_python import forked_processes

from attnfuzz.harness.campaign.events import Progress
from attnfuzz.harness.campaign.log import EventLog
from attnfuzz.harness.search.messages import Tally
from attnfuzz.kernels.cuda.visible import visible

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

TINY = {
    "isolation": ("--backend", "torch_sdpa", "--cases", "3", "--rounds", "1", "--fresh", "1"),
    "deaths": ("--deaths", "1", "--starts", "1", "--cases", "100"),
    "detection": ("--backend", "trtllm_mla@22688-before", "--seeds", "1", "--cases"),
    "phases": ("--backend", "torch_sdpa", "--examples", "5"),
    "sensitivity": ("--length", "16", "--rows", "256", "--trials", "2", "--jobs", "1"),
    "backend_sensitivity": ("--backend", "torch_sdpa", "--length", "16", "--trials", "2", "--jobs", "1"),
    "false_alarms": ("--backend", "torch_sdpa", "--rows", "100", "--cases", "1", "--jobs", "1"),
    "state_false_alarms": ("--backend", "native:kda", "--rows", "100"),
    "sparse_false_alarms": ("--rows", "100", "--jobs", "2"),
    "state_power": ("--tokens", "4"),
    "coverage": ("--backend", "torch_sdpa", "--examples", "20"),
    "judging_cost": ("--cases", "3", "--keys", "1024", "--rounds", "1"),
    "comparing_pools": ("--cases", "2", "--rounds", "1"),
    "throughput": ("--backend", "torch_sdpa", "--seconds", "1", "--rounds", "1"),
    "importing": ("--gigabytes", "0.1"),
    "many_jobs": ("--backend", "torch_sdpa", "--nodes", "1", "--jobs", "2", "--seconds", "2"),
    "triaging": ("--bug", "sglang-24856"),
    "causes": ("--backend", "trtllm_mha+sinks_scaled_as_logits", "--examples", "30", "--rows"),
    "shrinking": ("--report", "sglang-24856", "--rounds", "1"),
    "pursuing": ("--failures", "2", "--one-in", "17", "--seconds", "0.01"),
    "script_share": ("merge_in_base_e",),
    "explaining": ("window_one_short", "merge_in_base_e", "sum_not_rescaled", "--draws", "1", "--examples", "20"),
}

MEASURES = {
    "state_false_alarms": ("failures", "largest margins"),
    "sparse_false_alarms": ("failures", "largest margins", "attention, packed latent"),
    "state_power": ("recurrences of 4 tokens", "decays", "gate of one token"),
    "isolation": ("ratio", "added to a small case", "isolated workers are faster by"),
    "deaths": ("a deadly case and the next verdict", "a cold start to the first verdict", "1 deaths in a row"),
    "detection": ("trtllm_mla@22688-before", "1 of 1", "to shrink", "requests"),
    "phases": ("drawing", "kernels", "reference", "judging", "transport"),
    "sensitivity": ("tokens dropped, one row, probe values", "16 bfloat16", "T5", "flash-attn 2x", "FlashInfer tests"),
    "backend_sensitivity": ("torch_sdpa", "bfloat16", "calibrated", "dropped, probe", "lse + x"),
    "false_alarms": ("bfloat16 large_logits", "rate", "0 of 0", "T1", "all"),
    "coverage": ("possible", "attnfuzz, biased", "attnfuzz, unbiased", "Hypothesis, field", "uniform, field"),
    "throughput": ("2 jobs", "cases per second", "over 1 job", "event log", "bytes per case", "keeping the corpus"),
    "many_jobs": ("first half", "second", "messages/s", "us a message"),
    "importing": ("nothing", "0.1 GB", "values", "statistics", "seed", "own MiB"),
    "triaging": ("sglang-24856", "caller", "deterministic"),
    "causes": ("trtllm_mha+sinks_scaled_as_logits", "causes per planted defect", "campaigns cut short"),
    "shrinking": ("reported, steps", "reported, calls", "first random, steps", "requests, pages, bytes", "seconds"),
    "pursuing": ("at random, 1 in 17", "each 17th", "2 of 2"),
    "script_share": ("that exits 1", "1 (100%)", "lines (median)"),
    "explaining": ("pinned", "right", "silent", "wrong", "0 (0%)"),
    "judging_cost": ("1,024 keys", "reference", "tiers", "probe"),
    "comparing_pools": ("native:store_cache,trtllm_mha", "copying", "attention alone"),
}

ON_A_GPU = ("gpu_fixup", "gpu_guarding", "gpu_operations", "gpu_rates", "gpu_routes", "gpu_strays")

RAISING = """
from attnfuzz.kernels.libraries.torch_sdpa import SdpaBackend

class Session:
    def forward(self, index):
        raise RuntimeError("out of order")

class Raising(SdpaBackend):
    def open(self, case, bench):
        return Session()
"""


@pytest.fixture
def forked() -> Iterator[None]:
    """Benchmarks that have nothing to measure are forked, and import no torch."""
    with forked_processes():
        yield


def run(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = str(BENCHMARKS / f"{name}.py")
    return subprocess.run([sys.executable, script, *options], capture_output=True, text=True, check=False)


@pytest.mark.long
@pytest.mark.parametrize("name", TINY)
def test_a_benchmark_prints_its_table(name: str) -> None:
    done = run(name, *TINY[name])
    assert done.returncode == 0, done.stderr
    for measure in MEASURES[name]:
        assert measure in done.stdout
    assert "cores, load" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("name", TINY)
def test_a_benchmark_tells_its_options(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0, done.stderr
    for option in (each for each in TINY[name] if each.startswith("--")):
        assert option in done.stdout


@pytest.mark.usefixtures("forked")
@pytest.mark.skipif(bool(visible()), reason="this machine has a GPU: scripts/gpu.sh bench runs them")
@pytest.mark.parametrize("name", ON_A_GPU)
def test_a_benchmark_that_needs_a_gpu_reports_that_in_one_line(name: str) -> None:
    done = run(name)
    assert done.returncode in (1, 2)
    assert "GPU" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("forked")
def test_an_unknown_backend_is_one_clear_line() -> None:
    done = run("phases", "--backend", "trtllm_mah")
    assert done.returncode == 2
    assert "unknown backend" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("forked")
def test_a_backend_that_fails_is_not_measured(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(RAISING)
    done = run("phases", "--backend", f"{file}:Raising", "--examples", "5")
    assert done.returncode == 1
    assert "Raising fails, choose one that passes" in done.stderr


@pytest.mark.usefixtures("forked")
def test_numbers_that_a_benchmark_has_written_are_summed_up_without_a_further_campaign(tmp_path: Path) -> None:
    """The first pair of the seed was measured before the time was over."""
    file, first = tmp_path / "pairs.json", "trtllm_mha+one+other"
    found = {"backend": first, "findings": 3, "causes": ["A", "B"], "needs": ["sinks", "-"], "rows": [1, 20]}
    spent = {"cases": 100, "seconds": 2.0, "cut_short": True, "smallest": [], "symptoms": []}
    settings = {"seed": 1, "examples": 9, "seconds": None, "most_seconds": None}
    file.write_text(json.dumps({"settings": settings, "found": [found | spent]}))
    options = ("--backend", first, "--backend", "torch_sdpa", "--examples", "9", "--json", str(file), "--within", "0")
    done = run("causes", *options)
    assert done.returncode == 1
    assert "1 backends were not measured" in done.stderr
    for measure in ("pairs found apart", "1 of 1", "causes per planted defect", "1.00"):
        assert measure in done.stdout


@pytest.mark.usefixtures("forked")
def test_a_log_shows_the_rate_over_time(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    with EventLog(path) as log:
        log(started("torch_sdpa"))
        for second in range(2, 403):
            cases = 60 if second <= 202 else 30
            log(Progress(at=float(second), backend="torch_sdpa", tally=Tally(searched=30, cases=cases, deaths=0)))
    done = run("endurance", "--log", str(path))
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines() if " to " in line] == ["60.0", "60.0", "30.0", "30.0"]
    assert "the last quarter over the first 60 s: 0.50" in done.stdout


@pytest.mark.usefixtures("forked")
def test_a_file_that_is_no_log_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_text("nothing\n")
    done = run("endurance", "--log", str(path))
    assert done.returncode == 1
    assert "not an event log" in done.stderr
    assert "Traceback" not in done.stderr
