"""On a system other than Linux, each way into attnfuzz ends with the same line, before anything that only Linux has."""

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
