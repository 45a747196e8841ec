"""The steps of the GitHub action, run as the shell scripts that they are: a runner does no more with them."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from attnfuzz.harness.cli.main import cli

ROOT = Path(__file__).resolve().parents[1]

# Each step is a process.
pytestmark = pytest.mark.slow


def step(name: str) -> dict[str, Any]:
    steps = YAML(typ="safe").load(ROOT / "action.yml")["runs"]["steps"]
    found: dict[str, Any] = next(each for each in steps if each.get("name") == name)
    return found


FAKE = """#!/bin/bash
echo "$@" >> calls
if [ "$1" = fuzz ]; then exit "$FUZZ_CODE"; fi
if [ "$FUZZ_CODE" = 2 ]; then exit 2; fi
if [ "$1" = report ]; then echo "# Two causes" > "${@: -1}"; fi
"""
"""Writes down how it is called, and ends like a campaign with FUZZ_CODE, or writes a report if there was one."""


def run(name: str, folder: Path, first: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step in a folder, with these values of its environment and "" for the others, and commands of `first`."""
    chosen = step(name)
    environment = {
        **os.environ,
        **dict.fromkeys(chosen["env"], ""),
        **variables,
        "PATH": f"{first}:{os.environ['PATH']}",
        "GITHUB_OUTPUT": "output",
        "GITHUB_STEP_SUMMARY": "summary.md",
        "RUNNER_TEMP": ".",
    }
    return subprocess.run(
        ["/bin/bash", "-c", chosen["run"]], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def fuzz(folder: Path, first: Path, backends: str, **variables: str) -> str:
    """Run the step that fuzzes, and return its output."""
    ran = run("Fuzz", folder, first, BACKENDS=backends, HOME_FOLDER="home", SECONDS_TO_SEARCH="3s", **variables)
    assert ran.returncode == 0, ran.stderr
    return (folder / "output").read_text()


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """Return a folder with an `attnfuzz` that runs nothing."""
    command = tmp_path / "bin" / "attnfuzz"
    command.parent.mkdir()
    command.write_text(FAKE)
    command.chmod(0o700)
    return command.parent


@pytest.mark.parametrize("code", ["0", "1"])
def test_the_code_of_a_campaign_is_that_of_the_job_after_its_summary(tmp_path: Path, fake: Path, code: str) -> None:
    given = {"LEDGER": "known.toml", "ARCHIVE": "modules.tar", "PROMISED": "true", "FUZZ_CODE": code}
    assert fuzz(tmp_path, fake, "torch_sdpa\ntrtllm_mha", **given) == f"code={code}\n"
    assert (tmp_path / "summary.md").read_text() == "# Two causes\n"
    assert run("Result", tmp_path, fake, CODE=code).returncode == int(code)
    both = "--backend torch_sdpa --backend trtllm_mha"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [
        f"build {both} --archive modules.tar",
        f"fuzz {both} --built --ledger known.toml --promised --time 3s --home home",
        "report --home home --markdown ./attnfuzz.md",
    ]
    (tmp_path / "known.toml").touch()
    for name, *arguments in map(str.split, calls):
        # As the command line reads them, without running anything.
        cli.commands[name].make_context(name, [str(tmp_path / each) if "." in each else each for each in arguments])


def test_a_campaign_that_did_not_start_has_no_summary(tmp_path: Path, fake: Path) -> None:
    assert fuzz(tmp_path, fake, "torch_spda", FUZZ_CODE="2") == "code=2\n"
    assert not (tmp_path / "summary.md").exists()


def test_a_comment_names_the_run_with_the_scripts(tmp_path: Path, fake: Path) -> None:
    (fake / "gh").write_text('#!/bin/bash\necho "$@" > gh-calls\n')
    (fake / "gh").chmod(0o700)
    (tmp_path / "attnfuzz.md").write_text("# Two causes\n")
    ran = run("Comment", tmp_path, fake, NUMBER="7", RUN="https://run", GITHUB_REPOSITORY="me/kernel")
    assert ran.returncode == 0, ran.stderr
    assert "(https://run)" in (tmp_path / "attnfuzz.md").read_text()
    assert (tmp_path / "gh-calls").read_text().startswith("pr comment 7 --repo me/kernel --edit-last")


def test_the_newest_logs_are_kept(tmp_path: Path, fake: Path) -> None:
    name = "Keep the logs of the last 30 campaigns"
    assert run(name, tmp_path, fake, HOME_FOLDER="home").returncode == 0
    for day in range(40):
        (tmp_path / f"home/campaigns/20261101-0000{day}").mkdir(parents=True)
    assert run(name, tmp_path, fake, HOME_FOLDER="home").returncode == 0
    kept = sorted(each.name for each in (tmp_path / "home/campaigns").iterdir())
    assert len(kept) == 30
    assert "20261101-000039" in kept


def test_the_home_that_is_restored_is_the_one_that_is_saved_and_uploaded() -> None:
    steps = YAML(typ="safe").load(ROOT / "action.yml")["runs"]["steps"]
    given = [each["with"] for each in steps if "uses" in each]
    assert {each["path"] for each in given} == {"${{ inputs.home }}"}
    restore, save, _ = given
    assert save["key"] == restore["key"]
    assert save["key"].startswith(restore["restore-keys"])


def test_scripts_are_handed_no_text_from_outside_as_code() -> None:
    assert all(
        "${{" not in step(name)["run"]
        for name in ("Fuzz", "Keep the logs of the last 30 campaigns", "Comment", "Result")
    )
