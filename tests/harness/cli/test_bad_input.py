"""Bad input ends with one clear line that says what to do, and exit code 2."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Attnfuzz = Callable[..., Any]


def refused(ran: Any, *words: str) -> None:
    """The command ended with 2, one line of error (after click's usage), and these words in it."""
    assert ran.code == 2
    assert "Traceback" not in ran.err
    *usage, last = ran.err.strip().splitlines()
    assert last.startswith("Error: ")
    assert all(line.startswith(("Usage:", "Try", "  ")) or not line for line in usage)
    for word in words:
        assert word in last


@pytest.mark.parametrize("command", ["fuzz", "replay", "bugs", "defects", "backends", "export"])
def test_help_is_clean(attnfuzz: Attnfuzz, command: str) -> None:
    ran = attnfuzz(command, "--help")
    assert ran.code == 0
    assert ran.out.startswith("Usage: attnfuzz " + command)


def test_an_unknown_backend_names_the_closest(attnfuzz: Attnfuzz) -> None:
    refused(attnfuzz("fuzz", "--backend", "trtllm_mah"), "unknown backend 'trtllm_mah'", "trtllm_mha")


def test_an_unknown_option_is_named(attnfuzz: Attnfuzz) -> None:
    refused(attnfuzz("fuzz", "--exmples", "3"), "--exmples")


def test_two_budgets_are_one_too_many(attnfuzz: Attnfuzz) -> None:
    refused(attnfuzz("fuzz", "--examples", "3", "--time", "3s"), "give one of them")


def test_a_duration_says_how_it_is_written(attnfuzz: Attnfuzz) -> None:
    refused(attnfuzz("fuzz", "--time", "soon"), "90s, 10m or 1h30m")


@pytest.mark.parametrize("option", ["--examples", "--jobs"])
def test_a_count_must_be_positive(attnfuzz: Attnfuzz, option: str) -> None:
    refused(attnfuzz("fuzz", option, "0"), option)


def test_a_backend_file_that_fails_to_import_says_how(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import no_such_module\n")
    refused(attnfuzz("fuzz", "--backend", "mine.py:Mine"), "mine.py", "no_such_module")


def test_a_backend_that_cannot_run_here_says_why(attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnfuzz.kernels.torch_sdpa.SdpaBackend.missing", lambda _: "no compiler: install g++")
    refused(attnfuzz("fuzz", "--backend", "torch_sdpa"), "torch_sdpa", "no compiler: install g++")


def test_an_out_folder_that_is_a_file_is_named(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    refused(attnfuzz("fuzz", "--backend", "torch_sdpa", "--out", "taken"), "taken")


def test_a_full_disk_is_one_line(attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "attnfuzz-out/events.ndjson")

    monkeypatch.setattr("attnfuzz.harness.cli.campaign.EventLog", full)
    refused(attnfuzz("fuzz", "--backend", "torch_sdpa"), "No space left", "--out")


def test_a_missing_case_is_named(attnfuzz: Attnfuzz) -> None:
    refused(attnfuzz("replay", "nothing.json"), "nothing.json")


def test_a_damaged_case_is_named(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    (tmp_path / "case.json").write_text("{")
    refused(attnfuzz("replay", "case.json"), "case.json", "damaged")


def test_a_folder_without_a_case_is_named(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    refused(attnfuzz("replay", str(tmp_path)), "case.json")


def test_an_unknown_bug_lists_the_known_ones(attnfuzz: Attnfuzz) -> None:
    refused(attnfuzz("bugs", "run", "nonsense"), "nonsense", "21649")


def test_an_error_of_ours_is_a_traceback_and_no_finding(attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("attnfuzz.harness.cli.backends.names", broken)
    ran = attnfuzz("backends")
    assert ran.code == 2
    assert "RuntimeError: a bug of ours" in ran.err
    assert "please report it" in ran.err
