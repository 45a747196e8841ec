"""The steps of the GitHub action, run as the shell scripts that they are: a runner does no more with them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.slow


def step(name: str) -> dict[str, Any]:
    steps = YAML(typ="safe").load(ROOT / "action.yml")["runs"]["steps"]
    found: dict[str, Any] = next(each for each in steps if each.get("name") == name)
    return found


def run(name: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step in a folder, with these values of its environment and "" for the others."""
    chosen = step(name)
    assert chosen["env"].keys() >= variables.keys()
    environment = {
        **os.environ,
        **dict.fromkeys(chosen["env"], ""),
        **variables,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GITHUB_OUTPUT": "output",
        "GITHUB_STEP_SUMMARY": "summary.md",
        "RUNNER_TEMP": ".",
    }
    return subprocess.run(
        ["/bin/bash", "-c", chosen["run"]], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def fuzz(folder: Path, backends: str, seconds: str = "3s") -> str:
    """Run the step that fuzzes, and return its output."""
    ran = run("Fuzz", folder, BACKENDS=backends, HOME_FOLDER="home", SECONDS_TO_SEARCH=seconds)
    assert ran.returncode == 0, ran.stderr
    return (folder / "output").read_text()


def test_a_campaign_with_findings_ends_the_job_with_1_after_its_summary(tmp_path: Path) -> None:
    assert fuzz(tmp_path, "torch_sdpa\ntrtllm_mha@21649-before", "15s") == "code=1\n"
    assert "trtllm_mha@21649-before" in (tmp_path / "summary.md").read_text()
    assert list((tmp_path / "home" / "findings").glob("*/case.json"))
    assert run("Result", tmp_path, CODE="1").returncode == 1


def test_a_misspelt_backend_has_no_summary(tmp_path: Path) -> None:
    assert fuzz(tmp_path, "torch_spda") == "code=2\n"
    assert not (tmp_path / "summary.md").exists()


def test_the_home_that_is_restored_is_the_one_that_is_saved_and_uploaded() -> None:
    steps = YAML(typ="safe").load(ROOT / "action.yml")["runs"]["steps"]
    given = [each["with"] for each in steps if "uses" in each]
    assert {each["path"] for each in given} == {"${{ inputs.home }}"}
    restore, save, _ = given
    assert save["key"] == restore["key"]
    assert save["key"].startswith(restore["restore-keys"])


def test_scripts_are_handed_no_text_from_outside_as_code() -> None:
    assert all("${{" not in step(name)["run"] for name in ("Fuzz", "Comment", "Result"))
