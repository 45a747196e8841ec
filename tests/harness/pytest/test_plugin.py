"""The pytest plugin: options, shards, and what a failure looks like."""

import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import fake_nvml
import fake_sglang
import pytest

from attnfuzz.harness.campaign import prepare
from attnfuzz.harness.pytest.plugin import Budget, pytest_generate_tests
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.library_cache import cache_folder

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
        (["--attn-backend", "sglang==" + "9" * 5000 + ":trtllm_mha"], "--attn-backend: *is no version"),
        (["--attn-backend", "absent.py:MINE"], "--attn-backend: backend file absent.py does not exist"),
        (["--attn-device", "tpu"], "invalid choice: 'tpu'"),
        (["--attn-device", "cuda"], "--attn-device cuda: trtllm_mha is hopper:trtllm_mha and"),
        (["--attn-device", "cpu", "--attn-backend", "xqa"], "--attn-device cpu: xqa has no counterpart on cpu"),
        (["--attn-backend", "sglang:trtllm_mha"], "--attn-backend: 'sglang:trtllm_mha' does not say which SGLang"),
        (["--attn-sglang", "x" * 300], "is no folder: name a checkout of SGLang"),
        (["--attn-sglang", "absent"], "--attn-sglang absent is no folder: name a checkout of SGLang"),
        (["--attn-sglang", "."], "--attn-backend: * holds no source of SGLang"),
        (
            ["--attn-sglang", ".", "--attn-backend", "trtllm_mha"],
            "a source tree is for sglang:trtllm_mha",
        ),
        (["--attn-guard", "top"], "invalid choice: 'top'"),
        (["--attn-preset", "weekly"], "--attn-preset weekly: give one of quick, nightly, deep"),
        (["--attn-time", "1y"], "--attn-time: '1y' is no duration"),
        (["--attn-time", "1m", "--attn-preset", "quick"], "are all budgets: give one of them"),
        (["--attn-ledger", "absent.toml"], "--attn-ledger: cannot read ledger absent.toml"),
    ],
)
def test_options_are_checked_at_the_door(pytester: pytest.Pytester, options: list[str], words: str) -> None:
    pytester.makepyfile(TEST)
    ran = pytester.runpytest_inprocess(*options)
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines([f"*{words}*"])


def test_a_backend_that_fails_to_import_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST, mine="import os; os._exit(0)")
    ran = pytester.runpytest_inprocess("--attn-backend", f"{pytester.path}/mine.py:MINE")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines(["*--attn-backend: *the process left with exit code 0*"])


def test_a_fuzz_test_is_split_into_shards(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST)
    ran = pytester.runpytest_inprocess("--collect-only", "-q", "--attn-backend", "torch_sdpa")
    ran.stdout.fnmatch_lines([f"*test_fuzz[[]torch_sdpa-{shard}of4[]]" for shard in range(1, 5)])


def test_few_examples_make_few_shards(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST)
    ran = pytester.runpytest_inprocess("--collect-only", "-q", "--attn-backend", "torch_sdpa", "--attn-examples", "2")
    ran.stdout.fnmatch_lines(["2 tests collected*"])


def test_a_device_chooses_among_the_backends_of_a_name(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GpuBackend, "missing", lambda _: None)
    fake_nvml.install(monkeypatch, [fake_nvml.H200])
    pytester.makepyfile(TEST)
    ran = pytester.runpytest_inprocess("--collect-only", "-q", "--attn-device", "cuda")
    ran.stdout.fnmatch_lines(["*test_fuzz[[]hopper:trtllm_mha-1of4[]]", "*test_fuzz[[]hopper:trtllm_mla-1of4[]]"])
    ran = pytester.runpytest_inprocess("--collect-only", "-q", "--attn-device", "cpu")
    ran.stdout.fnmatch_lines(["*test_fuzz[[]trtllm_mha-1of4[]]", "*test_fuzz[[]torch_sdpa-1of4[]]"])


@pytest.mark.slow
def test_a_source_tree_of_sglang_is_fuzzed_by_its_path(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_sglang.need_nothing(monkeypatch)
    tree = fake_sglang.copy_tree(tmp_path / "sglang")
    pytester.makepyfile(TEST)
    options = ["--attn-sglang", str(tree), "--attn-backend", "sglang:trtllm_mha"]
    ran = pytester.runpytest_inprocess("--collect-only", "-q", *options)
    ran.stdout.fnmatch_lines([f"*test_fuzz[[]sglang@{tree}:trtllm_mha-1of4[]]"])
    ran = pytester.runpytest_inprocess(*options, "--attn-examples", "1", "--attn-seed", "1")
    ran.assert_outcomes(passed=1)


def test_a_fixed_backend_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST)
    ran = pytester.runpytest_inprocess("--attn-backend", "torch_sdpa", "--attn-examples", "8", "--attn-guard", "left")
    ran.assert_outcomes(passed=4)


def with_bug(defective: str) -> list[str]:
    """Options that search a backend in which all cases fail in one way."""
    return ["--attn-backend", f"{defective}:KERNEL_ERROR", "--attn-seed", "1", "--attn-examples", "40"]


def test_a_bug_is_shown_with_the_shrunk_case_and_its_replay_line(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, defective: str
) -> None:
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile(TEST)
    ran = pytester.runpytest_inprocess(*with_bug(defective), "-k", "1of4")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["replay: attnfuzz replay .attnfuzz/*.json", "The same search: *--attn-seed 1"])
    ran.stdout.no_fnmatch_line("*Traceback*")
    ran.stdout.no_fnmatch_line("*Falsifying example*")
    assert list(pytester.path.glob(".attnfuzz/*.json"))


@pytest.fixture
def temporary(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = pytester.mkdir("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def assert_shown_once(ran: pytest.RunResult, temporary: Path) -> None:
    ran.assert_outcomes(failed=1, passed=3)
    # Where CI is set, pytest says it all once more in its summary.
    shown, _, _ = str(ran.stdout).partition("short test summary")
    assert shown.count("replay: attnfuzz replay") == 1
    assert not list(temporary.glob("attnfuzz-*"))


def test_a_bug_is_shown_once_by_all_shards(pytester: pytest.Pytester, temporary: Path, defective: str) -> None:
    pytester.makepyfile(TEST)
    assert_shown_once(pytester.runpytest_inprocess(*with_bug(defective)), temporary)


@pytest.mark.slow
def test_all_workers_share_a_seed_and_a_folder_of_claims(pytester: pytest.Pytester, temporary: Path) -> None:
    """Processes of pytest-xdist's, which are handed what the fixture reads; none of these imports torch."""
    pytester.makepyfile(
        """
        import os
        from pathlib import Path

        import pytest

        from attnfuzz.harness.pytest.plugin import _RUN

        @pytest.mark.parametrize("number", range(4))
        def test_run(request, number):
            run = request.config.stash[_RUN]
            run.claims.mkdir(exist_ok=True)
            with Path("seen").open("a") as seen:
                print(os.getpid(), run.seed, run.claims, file=seen)
        """
    )
    pytester.runpytest_subprocess("-n", "2", "-p", "no:cacheprovider").assert_outcomes(passed=4)
    seen = [line.split() for line in (pytester.path / "seen").read_text().splitlines()]
    processes, seeds, claims = map(set, zip(*seen, strict=True))
    assert (len(processes), len(seeds), len(claims)) == (2, 1, 1)
    assert Path(*claims).parent == temporary
    assert not list(temporary.iterdir())


@pytest.mark.slow
@pytest.mark.long
def test_a_bug_is_shown_once_by_all_shards_on_all_workers(
    pytester: pytest.Pytester, temporary: Path, defective: str
) -> None:
    pytester.makepyfile(TEST)
    ran = pytester.runpytest_subprocess(*with_bug(defective), "-n", "2", "-p", "no:cacheprovider")
    assert_shown_once(ran, temporary)


def test_a_bug_that_the_ledger_knows_is_an_expected_failure(pytester: pytest.Pytester, defective: str) -> None:
    pytester.makepyfile(TEST)
    ledger = pytester.path / "ledger.toml"
    ledger.write_text(f'[[known]]\nbackend = "{defective}:KERNEL_ERROR"\nkind = "Raised"\nreason = "it is planted"')
    ran = pytester.runpytest_inprocess(*with_bug(defective), "-k", "1of4", "-rx", "--attn-ledger", str(ledger))
    ran.assert_outcomes(xfailed=1)
    ran.stdout.fnmatch_lines(["XFAIL *known: *Raised-*: it is planted*"])


def test_with_a_home_there_is_one_test_for_all_backends(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST)
    backends = ["--attn-backend", "torch_sdpa", "--attn-backend", "trtllm_mha"]
    ran = pytester.runpytest_inprocess("--collect-only", "-q", *backends, "--attn-home", "home")
    ran.stdout.fnmatch_lines(["*test_fuzz[[]campaign[]]", "1 test collected*"])


@pytest.mark.slow
def test_a_campaign_reports_causes_keeps_its_home_and_knows_the_ledger(
    pytester: pytest.Pytester, defective: str
) -> None:
    """A campaign's jobs are processes."""
    pytester.makepyfile(TEST)
    options = [*with_bug(defective), "--attn-home", "home"]
    ran = pytester.runpytest_inprocess(*options)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["new: Raised at *", "attnfuzz replay home/findings/*", "Report: home/campaigns/*.html"])
    assert list(pytester.path.glob("home/findings/*/case.json"))
    ledger = pytester.path / "ledger.toml"
    ledger.write_text(f'[[known]]\nbackend = "{defective}:KERNEL_ERROR"\nkind = "Raised"\nreason = "it is planted"')
    ran = pytester.runpytest_inprocess(*options, "-rx", "--attn-ledger", str(ledger))
    ran.assert_outcomes(xfailed=1)
    ran.stdout.fnmatch_lines(["XFAIL *known: Raised at *: it is planted*"])


def test_a_home_that_is_none_fails_in_one_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST, home="")
    ran = pytester.runpytest_inprocess("--attn-backend", "torch_sdpa", "--attn-home", "home.py")
    ran.assert_outcomes(failed=1)
    ran.stdout.no_fnmatch_line("*Traceback*")


def test_examples_are_split_the_same_for_any_number_of_workers() -> None:
    shares = Budget(examples=10).shares(backends=2, workers=1)
    assert [share.examples for share in shares] == [3, 3, 2, 2]
    assert shares == Budget(examples=10).shares(backends=2, workers=16)


@pytest.mark.parametrize(("backends", "workers"), [(1, 1), (2, 1), (2, 3), (3, 8), (1, 64)])
def test_workers_that_share_a_time_are_busy_until_it_is_over(backends: int, workers: int) -> None:
    shares = Budget(seconds=3600).shares(backends, workers)
    shards = len(shares) * backends
    assert len(shares) >= 4
    assert shards % workers == 0
    assert sum(share.seconds for share in shares) * backends / workers == pytest.approx(3600)


def test_a_preset_is_split_over_shards(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_share(attn_fuzz):
            assert attn_fuzz.search.shard.seconds == 2 * 3600 / 4
        """
    )
    ran = pytester.runpytest_inprocess("--attn-backend", "torch_sdpa", "--attn-preset", "nightly")
    ran.assert_outcomes(passed=4)


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
    class WorkerOfXdist:
        """As pytest-xdist makes it: with `-n 1000`, in one of its processes."""

        def pytest_configure(self, config: pytest.Config) -> None:
            config.workerinput = {"workercount": 1000, "attn_seed": 1, "attn_claims": "claims"}  # type: ignore[attr-defined]

    monkeypatch.setattr(prepare, "available", lambda: 10 << 30)
    config = pytester.parseconfig("--attn-backend", "torch_sdpa")
    WorkerOfXdist().pytest_configure(config)
    metafunc = SimpleNamespace(fixturenames=["attn_fuzz"], config=config)
    words = r"750\.0 GiB of memory, and 10\.0 GiB are available: give pytest-xdist -n 13"
    with pytest.raises(pytest.UsageError, match=words):
        pytest_generate_tests(metafunc)  # type: ignore[arg-type]
