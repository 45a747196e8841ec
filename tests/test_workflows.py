"""What GitHub reads: by its own schemas, and by rules for workflows that a schema can't state."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import attnfuzz

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "docs/examples").glob("*.yml"))
WORKFLOWS = [*sorted((ROOT / ".github/workflows").glob("*.yml")), *EXAMPLES]
ACTION = ROOT / "action.yml"

workflows = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: f"{path.parent.name}/{path.stem}")
NIGHTLY = ROOT / ".github/workflows/nightly.yml"
RELEASE = ROOT / ".github/workflows/release.yml"
FILES = {
    "vendor.github-workflows": WORKFLOWS,
    "vendor.github-actions": [ACTION],
    "vendor.dependabot": [ROOT / ".github/dependabot.yml"],
    "vendor.github-issue-forms": [
        ROOT / f".github/ISSUE_TEMPLATE/{form}.yml" for form in ("bug", "false-alarm", "backend")
    ],
}


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(path)["jobs"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("schema", FILES)
def test_they_follow_githubs_schema(schema: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    ran = subprocess.run([*command, *map(str, FILES[schema])], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION], ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_action_is_pinned_to_a_commit_whose_version_is_reported(path: Path) -> None:
    used = [line for line in path.read_text().splitlines() if "uses:" in line]
    assert used
    for line in used:
        assert re.search(r"uses: [\w/.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


@workflows
def test_every_job_has_a_time_limit_and_names_the_rights_that_it_needs(path: Path) -> None:
    assert YAML(typ="safe").load(path)["permissions"] == {}
    for job in jobs(path).values():
        assert job["timeout-minutes"] <= 360
        assert "permissions" in job


@workflows
def test_jobs_that_run_code_have_read_permission_alone(path: Path) -> None:
    for job in jobs(path).values():
        runs_code = any(step.get("uses", "").startswith("actions/checkout@") for step in job["steps"])
        assert not runs_code or job["permissions"] == {"contents": "read"}


@workflows
def test_scripts_are_handed_no_text_from_outside_as_code(path: Path) -> None:
    for job in jobs(path).values():
        for step in job["steps"]:
            assert "${{" not in step.get("run", "")


def test_the_nightly_job_keeps_its_findings() -> None:
    steps = jobs(NIGHTLY)["fuzz"]["steps"]
    fuzz = next(index for index, step in enumerate(steps) if "attnfuzz fuzz" in step.get("run", ""))
    keeping = steps[fuzz + 1 :]
    assert {"actions/cache/save", "actions/upload-artifact"} <= {step.get("uses", "").split("@")[0] for step in keeping}
    assert all("always()" in step["if"] for step in keeping)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_gives_the_action_inputs_that_it_has(path: Path) -> None:
    inputs = YAML(typ="safe").load(ACTION)["inputs"]
    given = [step["with"] for step in jobs(path)["fuzz"]["steps"] if step.get("uses", "").startswith("OWNER/attnfuzz@")]
    assert given
    assert all(each.keys() <= inputs.keys() and "backend" in each for each in given)


def test_the_restored_cache_is_the_saved_one() -> None:
    steps = jobs(NIGHTLY)["fuzz"]["steps"]
    restored, saved = (
        {
            step["with"]["path"]: step["with"]
            for step in steps
            if step.get("uses", "").startswith(f"actions/cache/{which}@")
        }
        for which in ("restore", "save")
    )
    assert restored
    assert restored.keys() == saved.keys()
    for path_in_cache, save in saved.items():
        assert save["key"].startswith(restored[path_in_cache]["restore-keys"])


def test_the_version_and_the_action_of_the_example_are_those_of_the_newest_release() -> None:
    newest = re.search(r"^## \[(\d[\d.]+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == attnfuzz.__version__
    assert all(f"# v{newest[1]}" in path.read_text() for path in EXAMPLES)


def test_a_release_is_tested_before_it_is_published() -> None:
    release = jobs(RELEASE)
    assert release["build"]["needs"] == "test"
    assert release["publish"]["needs"] == "build"
    assert "make test" in [step.get("run") for step in release["test"]["steps"]]


def test_the_publishing_job_runs_no_code_and_has_no_other_permission() -> None:
    publish = jobs(RELEASE)["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"] == "pypi"
    assert all("run" not in step for step in publish["steps"])
    assert [name for name, job in jobs(RELEASE).items() if "id-token" in job["permissions"]] == ["publish"]
