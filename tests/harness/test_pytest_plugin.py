"""The pytest plugin: options, shards, and what a failure looks like."""

import subprocess
import sys

import pytest

TEST = """
def test_fuzz(attn_fuzz):
    attn_fuzz.run()
"""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--attn-backend", "trtllm_mah"], "unknown backend 'trtllm_mah'"),
        (["--attn-examples", "0"], "--attn-examples must be at least 1"),
        (["--attn-seed", "-1"], "--attn-seed must not be negative"),
        (["--attn-device", "cuda"], "on the CPU only"),
        (["--attn-guard", "top"], "invalid choice: 'top'"),
    ],
)
def test_options_are_checked_at_the_door(pytester: pytest.Pytester, options: list[str], words: str) -> None:
    pytester.makepyfile(TEST)
    ran = pytester.runpytest_inprocess(*options)
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines([f"*{words}*"])


def test_a_fuzz_test_is_split_into_shards(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST)
    ran = pytester.runpytest_inprocess("--collect-only", "-q", "--attn-backend", "torch_sdpa")
    ran.stdout.fnmatch_lines([f"*test_fuzz[[]torch_sdpa-{shard}of4[]]" for shard in range(1, 5)])


def test_few_examples_make_few_shards(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST)
    ran = pytester.runpytest_inprocess("--collect-only", "-q", "--attn-backend", "torch_sdpa", "--attn-examples", "2")
    ran.stdout.fnmatch_lines(["2 tests collected*"])


def test_a_fixed_backend_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST)
    ran = pytester.runpytest_inprocess("--attn-backend", "torch_sdpa", "--attn-examples", "8", "--attn-guard", "left")
    ran.assert_outcomes(passed=4)


def test_a_bug_is_shown_with_the_shrunk_case_and_its_replay_line(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile(TEST)
    options = ["--attn-backend", "trtllm_mha@21649-before", "--attn-seed", "1", "-k", "1of4", "--attn-examples", "2000"]
    ran = pytester.runpytest_inprocess(*options)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["replay: attnfuzz replay .attnfuzz/*.json", "The same search: *--attn-seed 1"])
    ran.stdout.no_fnmatch_line("*Traceback*")
    ran.stdout.no_fnmatch_line("*Falsifying example*")
    assert list(pytester.path.glob(".attnfuzz/*.json"))


def test_the_plugin_waits_with_torch() -> None:
    code = "import sys, attnfuzz.harness.pytest_plugin; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
