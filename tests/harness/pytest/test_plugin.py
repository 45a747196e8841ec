"""The pytest plugin: options, campaigns, and what a failure looks like."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import fake_nvml
import fake_sglang
import pytest
from campaign_events import finished, started

from attnfuzz.harness.campaign import prepare
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.run import Ended
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.pytest.campaign import FuzzCampaign, NothingJudged
from attnfuzz.harness.pytest.plugin import pytest_generate_tests
from attnfuzz.kernels.building.library_cache import cache_folder
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend

TEST = """
def test_fuzz(attn_fuzz):
    attn_fuzz.run()
"""


@pytest.fixture(autouse=True)
def _compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's own home folder would be one without compiled kernels."""
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(cache_folder()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--attn-backend", "trtllm_mah"], "unknown backend 'trtllm_mah'"),
        (["--attn-examples", "0"], "--attn-examples must be at least 1"),
        (["--attn-examples", "9" * 400], "--attn-examples must be at least 1, and at most"),
        (["--attn-seed", "-1"], "--attn-seed must not be negative"),
        (["--attn-seed", str(1 << 63)], "--attn-seed must not be negative, and have at most 63 bits"),
        (["--attn-time", "9" * 400], "--attn-time: a duration must be at most"),
        (["--attn-backend", "sglang==" + "9" * 5000 + ":trtllm_mha"], "--attn-backend: *is not a version"),
        (["--attn-backend", "absent.py:MINE"], "--attn-backend: backend file absent.py does not exist"),
        (["--attn-device", "tpu"], "invalid choice: 'tpu'"),
        (["--attn-device", "cuda"], "--attn-device cuda: trtllm_mha is hopper:trtllm_mha and"),
        (["--attn-device", "cpu", "--attn-backend", "xqa"], "--attn-device cpu: xqa has no counterpart on cpu"),
        (["--attn-backend", "sglang:trtllm_mha"], "--attn-backend: 'sglang:trtllm_mha' does not say which SGLang"),
        (["--attn-sglang", "x" * 300], "is not a folder: name a checkout of SGLang"),
        (["--attn-sglang", "absent"], "--attn-sglang absent is not a folder: name a checkout of SGLang"),
        (["--attn-sglang", "."], "--attn-backend: * holds no source of SGLang"),
        (
            ["--attn-sglang", ".", "--attn-backend", "trtllm_mha"],
            "a source tree is for sglang:trtllm_mha",
        ),
        (["--attn-guard", "top"], "invalid choice: 'top'"),
        (["--attn-preset", "weekly"], "--attn-preset weekly: give one of quick, nightly, deep"),
        (["--attn-time", "1y"], "--attn-time: '1y' is not a duration"),
        (["--attn-time", "1m", "--attn-preset", "quick"], "are all budgets: give one of them"),
        (["--attn-ledger", "absent.toml"], "--attn-ledger: cannot read ledger absent.toml"),
    ],
)
def test_options_are_checked_at_the_door(pytester: pytest.Pytester, options: list[str], words: str) -> None:
    pytester.makepyfile(TEST)
    ran = pytester.runpytest_inprocess(*options)
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines([f"*{words}*"])


def test_the_report_header_has_the_remark_on_the_ledger(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): ...")
    (pytester.path / "ledger.toml").write_text(
        '[[known]]\nbackend = "noengine==1.2:decoder"\nkind = "Hang"\nreason = "it is not installed here"'
    )
    ran = pytester.runpytest_inprocess("--attn-ledger", "ledger.toml")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["attnfuzz: ledger.toml: 1 backend unknown here, *: noengine==1.2:decoder"])


def test_a_backend_that_fails_to_import_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST, mine="import os; os._exit(0)")
    ran = pytester.runpytest_inprocess("--attn-backend", f"{pytester.path}/mine.py:MINE")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines(["*--attn-backend: *the process left with exit code 0*"])


BACKENDS = """
def test_backends(attn_fuzz):
    print(*attn_fuzz.search.plan.backends)
"""


def test_a_device_chooses_among_the_backends_of_a_name(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GpuBackend, "missing", lambda _: None)
    fake_nvml.install(monkeypatch, [fake_nvml.H200])
    pytester.makepyfile(BACKENDS)
    ran = pytester.runpytest_inprocess("-s", "--attn-device", "cuda")
    ran.stdout.fnmatch_lines(["*hopper:trtllm_mha hopper:trtllm_mla*"])
    ran = pytester.runpytest_inprocess("-s", "--attn-device", "cpu")
    ran.stdout.fnmatch_lines(["*trtllm_mha trtllm_mla torch_sdpa*"])


def test_a_source_tree_of_sglang_is_fuzzed_by_its_path(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_sglang.need_nothing(monkeypatch)
    tree = fake_sglang.copy_tree(tmp_path / "sglang")
    pytester.makepyfile(BACKENDS)
    ran = pytester.runpytest_inprocess("-s", "--attn-sglang", str(tree), "--attn-backend", "sglang:trtllm_mha")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines([f"*sglang@{tree}:trtllm_mha*"])


def test_a_fixed_backend_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST)
    ran = pytester.runpytest_inprocess("--attn-backend", "torch_sdpa", "--attn-examples", "2", "--attn-guard", "left")
    ran.assert_outcomes(passed=1)


def with_bug(defective: str) -> list[str]:
    """Options that search a backend in which all cases fail in one way."""
    return ["--attn-backend", f"{defective}:WRONG_ROW", "--attn-seed", "1", "--attn-examples", "8"]


@pytest.mark.slow
def test_without_a_home_a_bug_is_shown_and_nothing_is_left_in_the_folder(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, defective: str
) -> None:
    monkeypatch.setenv("CI", "true")
    test = pytester.makepyfile(TEST)
    ran = pytester.runpytest_inprocess(*with_bug(defective), "-p", "no:cacheprovider")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        [
            "new: *wrong * (defective_backend.py:WRONG_ROW, decode)",
            "attnfuzz replay *",
            "The same search: --attn-seed 1",
        ]
    )
    ran.stdout.no_fnmatch_line("*Traceback*")
    ran.stdout.no_fnmatch_line("*Falsifying example*")
    assert [path for path in pytester.path.iterdir() if path.suffix != ".pyc" and path.name != "__pycache__"] == [test]


@pytest.mark.slow
def test_a_campaign_reports_causes_keeps_its_home_and_knows_the_ledger(
    pytester: pytest.Pytester, defective: str
) -> None:
    """A campaign's jobs are processes."""
    pytester.makepyfile(TEST)
    options = [*with_bug(defective), "--attn-home", "home"]
    ran = pytester.runpytest_inprocess(*options)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        [
            "new: *wrong * (defective_backend.py:WRONG_ROW, decode)",
            "attnfuzz replay home/findings/*",
            "Report: home/campaigns/*.html",
        ]
    )
    assert list(pytester.path.glob("home/findings/*/case.json"))
    ledger = pytester.path / "ledger.toml"
    known = f'[[known]]\nbackend = "{defective}:WRONG_ROW"\nreason = "it is planted"\nkind ='
    ledger.write_text(f'{known} "OutputMismatch"\n{known} "EmptyRow"\n')
    ran = pytester.runpytest_inprocess(*options, "-rx", "--attn-ledger", str(ledger))
    ran.assert_outcomes(xfailed=1)
    ran.stdout.fnmatch_lines(["XFAIL *known: *wrong *: it is planted*"])


def test_a_campaign_that_judged_nothing_has_not_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Ended("20300101-000000", Standing.of([started("torch_sdpa"), finished(at=50.0)]))
    monkeypatch.setattr("attnfuzz.harness.pytest.campaign.run", lambda _: ended)
    with pytest.raises(NothingJudged, match=r"No case was judged in 50 s: the time was over .*; give more --attn-time"):
        FuzzCampaign(Plan(backends=("torch_sdpa",), out=tmp_path)).found()


def test_a_home_that_is_none_fails_in_one_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST, home="")
    ran = pytester.runpytest_inprocess("--attn-backend", "torch_sdpa", "--attn-home", "home.py")
    ran.assert_outcomes(failed=1)
    ran.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize(
    ("options", "examples", "seconds"),
    [
        ((), 200, None),
        (("--attn-examples", "7"), 7, None),
        (("--attn-time", "1m"), None, 60.0),
        (("--attn-preset", "nightly"), None, 7200.0),
        (("--attn-preset", "quick"), 1000, None),
    ],
)
def test_there_is_one_budget(
    pytester: pytest.Pytester, options: tuple[str, ...], examples: int | None, seconds: float | None
) -> None:
    pytester.makepyfile(
        f"""
        def test_budget(attn_fuzz):
            plan = attn_fuzz.search.plan
            assert (plan.examples, plan.seconds) == ({examples}, {seconds})
        """
    )
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=1)


class WorkerOfXdist:
    """A process of pytest-xdist, as it makes them with `-n WORKERS`."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def pytest_configure(self, config: pytest.Config) -> None:
        config.workerinput = {"workercount": self.workers}  # type: ignore[attr-defined]


def test_a_campaign_has_as_many_jobs_as_there_are_workers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_jobs(attn_fuzz):\n    assert attn_fuzz.search.plan.jobs == 2")
    ran = pytester.runpytest_inprocess("-p", "no:xdist", "--attn-backend", "torch_sdpa", plugins=[WorkerOfXdist(2)])
    ran.assert_outcomes(passed=1)


@pytest.mark.slow
def test_hypothesis_has_profiles_for_tests_of_cases(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from hypothesis import settings
        def test_profiles():
            nightly = settings.get_profile("attnfuzz-nightly")
            assert (settings.default.max_examples, settings.default.deadline) == (200, None)
            assert (nightly.max_examples, nightly.deadline) == (20_000, None)
        """
    )
    pytester.runpytest_subprocess("--hypothesis-profile", "attnfuzz-ci").assert_outcomes(passed=1)


@pytest.mark.slow
def test_the_plugin_waits_with_torch() -> None:
    code = (
        "import sys, attnfuzz.harness.pytest.plugin; assert not {'torch', 'hypothesis', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_more_workers_than_the_memory_is_enough_for_are_refused(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "available", lambda: 10 << 30)
    config = pytester.parseconfig("--attn-backend", "torch_sdpa")
    WorkerOfXdist(1000).pytest_configure(config)
    metafunc = SimpleNamespace(fixturenames=["attn_fuzz"], config=config)
    words = r"750\.0 GiB of memory, and 10\.0 GiB are available: give pytest-xdist -n 13"
    with pytest.raises(pytest.UsageError, match=words):
        pytest_generate_tests(metafunc)  # type: ignore[arg-type]
