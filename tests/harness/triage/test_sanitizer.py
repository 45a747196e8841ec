"""NVIDIA's tools: their command lines, and what they print.

The texts are made up, line by line after published output of real runs, but for ON_H200, which memcheck printed.
"""

import os
import sys
from pathlib import Path

import pytest

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.triage import sanitizer
from attnfuzz.harness.triage.sanitizer import ask_tools, in_words, sanitizer_command, why_missing
from attnfuzz.reference import case_file

SHORT_SEQ_LENS = case_file.load(Path(__file__).parents[1] / "short_seq_lens.json")

MEMCHECK = """\
========= COMPUTE-SANITIZER
some line of the script
========= Invalid __global__ read of size 2 bytes
=========     at kernel_mha+0x1a40 in mha.cu:1203
=========     by thread (31,0,0) in block (0,2,0)
=========     Access at 0x7f3c5a000200 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f3c5a000000 of size 512 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========
========= Invalid __global__ read of size 2 bytes
=========     at kernel_mha+0x1a40 in mha.cu:1203
=========     by thread (30,0,0) in block (0,2,0)
=========
========= ERROR SUMMARY: 2 errors
"""
ON_H200 = """\
========= COMPUTE-SANITIZER
torch 2.11.0+cu130, flashinfer 0.7.2.post1, on NVIDIA H200
========= Invalid __global__ read of size 16 bytes
=========     at kernel_mha(unsigned int, float, const float *, KVCacheList<(bool)1>, unsigned int *, void *)+0x1ea0
=========     by thread (0,0,1) in block (0,0,1)
=========     Access to 0x7fd6b0bf4000 is out of bounds
=========     and is 68,616,652,797 bytes after the nearest allocation at 0x7fc6b6e03800 of size 4 bytes
=========
========= Invalid __global__ read of size 16 bytes
=========     at kernel_mha(unsigned int, float, const float *, KVCacheList<(bool)1>, unsigned int *, void *)+0x1ea0
=========     by thread (1,0,1) in block (0,0,1)
=========
terminate called after throwing an instance of 'c10::AcceleratorError'
========= ERROR SUMMARY: 16 errors
========= ERROR SUMMARY: 14 errors were not printed. Use --print-limit option to adjust the number of printed errors
"""
INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at merge_states+0x90
=========     by thread (0,0,0) in block (1,0,0)
=========     Access at 0x7f3c5a000200
=========
========= ERROR SUMMARY: 1 error
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at reduce+0x110 in split.cu:40
=========     and Read access at reduce+0x1f0 in split.cu:52 [96 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (
            MEMCHECK,
            (
                "Invalid __global__ read of size 2 bytes, at kernel_mha+0x1a40 in mha.cu:1203, by thread (31,0,0) in "
                "block (0,2,0), 1 bytes after an allocation of 512 bytes, the first of 2"
            ),
        ),
        (
            INITCHECK,
            (
                "Uninitialized __global__ memory read of size 4 bytes, at merge_states+0x90, by thread (0,0,0) in "
                "block (1,0,0), the first of 1"
            ),
        ),
        (
            RACECHECK,
            (
                "Race reported between Write access at reduce+0x110 in split.cu:40, and Read access at reduce+0x1f0 in "
                "split.cu:52 [96 hazards], the first of 1"
            ),
        ),
        ("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", "no error"),
        ("========= ERROR SUMMARY: 3 errors\n", "3 errors of the CUDA API, none of a kernel's memory"),
        ("========= COMPUTE-SANITIZER\nno CUDA device\n", "it did not finish: no CUDA device"),
        ("", "it did not finish: nothing was printed"),
    ],
)
def test_what_a_check_prints_becomes_a_clause(output: str, words: str) -> None:
    assert in_words(output) == words


def test_child_processes_are_checked_too() -> None:
    assert sanitizer_command("racecheck", Path("repro.py")) == [
        "compute-sanitizer",
        *("--tool", "racecheck", "--target-processes", "all", "--print-limit", "10"),
        *(sys.executable, "repro.py"),
    ]


def test_memcheck_leaves_out_what_cuda_bindings_asks_the_driver_in_vain() -> None:
    command = sanitizer_command("memcheck", Path("repro.py"))
    assert command[command.index("--report-api-errors") + 1] == "no"


@pytest.mark.slow
def test_without_a_gpu_the_tools_are_named_and_not_run(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    report = ask_tools(SHORT_SEQ_LENS, runner)
    assert report.said == ()
    assert report.missing == (
        "compute-sanitizer was not run: there is no GPU.",
        "cuda-gdb was not run: there is no GPU.",
    )


def test_a_tool_is_missed_for_want_of_a_gpu_or_of_the_toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert why_missing("cuda-gdb") == "there is no GPU"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert why_missing("cuda-gdb") == "it is not on the PATH: the CUDA toolkit has it"
    stand_in(tmp_path, "cuda-gdb", "true")
    assert why_missing("cuda-gdb") is None


def stand_in(folder: Path, name: str, text: str) -> None:
    """A tool that prints the allocator's setting and a text."""
    tool = folder / name
    tool.write_text(f'#!/bin/sh\necho "caching off: $PYTORCH_NO_CUDA_MEMORY_CACHING"\n{text}\n')
    tool.chmod(0o755)


@pytest.mark.slow
def test_each_check_is_asked_about_the_exported_script(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sanitizer, "why_missing", lambda tool: "it is lost" if tool == "cuda-gdb" else None)
    seen = tmp_path / "seen"
    checked = f'eval "script=\\${{$#}}"; cat "$script" >> {seen}; echo "========= ERROR SUMMARY: 0 errors"'
    stand_in(tmp_path, "compute-sanitizer", checked)
    report = ask_tools(SHORT_SEQ_LENS, runner)
    assert report.said == ("memcheck: no error", "initcheck: no error", "racecheck: no error")
    assert report.missing == ("cuda-gdb was not run: it is lost.",)
    assert seen.read_text().count("trtllm_batch_context_with_kv_cache(") >= 3


def test_a_tool_that_does_not_end_is_stopped_with_what_it_started(tmp_path: Path) -> None:
    stand_in(tmp_path, "endless", "sleep 1000 & wait")
    assert sanitizer._run([str(tmp_path / "endless")], {}, seconds=0.2) is None


def test_tools_see_every_tensor_by_itself(tmp_path: Path) -> None:
    stand_in(tmp_path, "tool", "true")
    assert sanitizer._run([str(tmp_path / "tool")], sanitizer.SEE_EVERY_TENSOR, seconds=60) == "caching off: 1\n"


def test_of_a_real_memcheck_the_kernel_is_reported_without_its_parameters() -> None:
    assert in_words(ON_H200) == (
        "Invalid __global__ read of size 16 bytes, at kernel_mha+0x1ea0, by thread (0,0,1) in block (0,0,1), "
        "68,616,652,797 bytes after an allocation of 4 bytes, the first of 16"
    )
