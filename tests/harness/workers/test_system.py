"""On a system other than Linux, each way into attnfuzz ends with the same line, before anything that only Linux has."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

import attnfuzz
from attnfuzz.harness.cli.main import cli
from attnfuzz.harness.pytest import plugin
from attnfuzz.harness.workers.system import WrongSystem, require_linux

SYSTEMS = {"darwin": "macOS", "win32": "Windows", "freebsd14": "freebsd14"}


@pytest.fixture(params=SYSTEMS)
def line(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "platform", request.param)
    return f"attnfuzz needs Linux, and this is {SYSTEMS[request.param]}: "


def test_linux_is_enough() -> None:
    require_linux()


def test_a_command_names_the_system(line: str) -> None:
    for command in (["fuzz"], ["bugs", "run"], ["findings", "list"]):
        ended = CliRunner().invoke(cli, command)
        assert isinstance(ended.exception, WrongSystem)
        assert str(ended.exception).startswith(line)
        assert "\n" not in str(ended.exception)


@pytest.mark.usefixtures("line")
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_are_printed_anywhere(option: str) -> None:
    assert CliRunner().invoke(cli, [option]).exit_code == 0


def test_the_functions_for_tests_name_the_system(line: str) -> None:
    with pytest.raises(WrongSystem, match=line):
        attnfuzz.cases("trtllm_mha")
    with pytest.raises(WrongSystem, match=line):
        attnfuzz.check(cast("Any", None))


def test_the_fixture_names_the_system_when_tests_are_collected(line: str) -> None:
    metafunc = cast("pytest.Metafunc", SimpleNamespace(fixturenames=["attn_fuzz"], config=None))
    with pytest.raises(pytest.UsageError, match=f"attn_fuzz: {line}"):
        plugin.pytest_generate_tests(metafunc)


@pytest.mark.usefixtures("line")
def test_a_suite_without_the_fixture_runs_anywhere() -> None:
    plugin.pytest_generate_tests(cast("pytest.Metafunc", SimpleNamespace(fixturenames=["tmp_path"])))


ON_WINDOWS = """
import sys
import click, hypothesis, msgspec, packaging
sys.modules |= dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios"))
sys.platform = "win32"
sys.argv = ["attnfuzz", "fuzz"]
from attnfuzz.harness.cli.main import main
main()
"""


@pytest.mark.slow
def test_a_command_names_the_system_where_modules_of_posix_are_missing() -> None:
    # In a process of its own, since this one has imported these modules.
    ended = subprocess.run([sys.executable, "-c", ON_WINDOWS], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr.startswith("Error: attnfuzz needs Linux, and this is Windows: ")
