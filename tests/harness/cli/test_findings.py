"""`attnfuzz findings`: what people see of the findings of all nights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_archive import FINGERPRINT, archive, found
from msgspec.structs import replace

from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.verdict.failures import Kind

Run = Callable[..., Any]


@pytest.fixture
def name(tmp_path: Path) -> str:
    """A finding that failed on the first night and passed on the second."""
    home = tmp_path / "attnfuzz-out"
    path, _ = archive(home, "night 1", {"torch": "2.12", "cpu": "any"}, now=0.0).file(found(), FINGERPRINT)
    archive(home, "night 2", {"torch": "2.13"}, now=86400.0).checked(path.name, fails=False)
    return path.name


def test_a_list_tells_states_and_dates(attnfuzz: Run, name: str) -> None:
    ran = attnfuzz("findings", "list")
    assert ran.code == 0
    (_, line) = ran.out.splitlines()[:2]
    assert line.split()[:3] == ["fixed", "1970-01-01", "00:00"]
    assert name[:20] in ran.out


def test_findings_of_a_cause_are_listed_below_the_one_that_stands_for_it(attnfuzz: Run, tmp_path: Path) -> None:
    night = archive(tmp_path / "attnfuzz-out", "night 1")
    cause = replace(found(kind=Kind.OUTPUT_MISMATCH), needs=("sinks", "window"))
    symptom = replace(found(kind=Kind.EMPTY_ROW), needs=("sinks", "window"), cause=cause.name)
    for each in (symptom, cause, found(kind=Kind.HANG)):
        night.file(each, FINGERPRINT)
    lines = attnfuzz("findings", "list").out.splitlines()
    titles = [line.partition("UTC  ")[2] for line in lines if " UTC " in line]
    assert titles[0].startswith("hangs")
    assert titles[1].startswith("computes a wrong output with sinks and window")
    assert titles[2].startswith("  computes wrong values for rows that see no key")
    names = [line.rpartition("-")[0].rstrip() for line in lines if "fake-" in line]
    assert [name.rpartition("  ")[2] for name in names] == ["fake-Hang", "fake-OutputMismatch", "fake-EmptyRow"]
    assert lines[-1] == "2 causes, 3 findings."
    shown = attnfuzz("findings", "show", symptom.name).out.splitlines()
    assert shown[1:3] == ["  needs sinks, window", f"  same cause as {cause.name}"]


def test_causes_that_are_probably_one_bug_are_listed_under_one_heading(attnfuzz: Run, tmp_path: Path) -> None:
    night = archive(tmp_path / "attnfuzz-out", "night 1")
    for kind, needs in ((Kind.OUTPUT_MISMATCH, "sinks"), (Kind.HANG, "window"), (Kind.NOT_FINITE, "sinks")):
        night.file(replace(found(kind=kind), needs=(needs,)), FINGERPRINT)
    lines = attnfuzz("findings", "list").out.splitlines()
    (heading,) = (number for number, line in enumerate(lines) if "Probably one bug, 2 causes" in line)
    below = [number for number, line in enumerate(lines) if "with sinks" in line]
    (above,) = (number for number, line in enumerate(lines) if "with window" in line)
    assert above < heading < min(below)
    listed = json.loads(attnfuzz("findings", "list", "--json", "-").out)["findings"]
    shown = [json.loads(attnfuzz("findings", "show", each["name"], "--json", "-").out)["finding"] for each in listed]
    assert shown == listed
    hang, first, other = listed
    assert [each["heading"] for each in listed] == [hang["name"], first["name"], first["name"]]
    assert other["cause"] == other["name"]


def test_a_finding_is_shown_with_its_history_and_report(attnfuzz: Run, name: str) -> None:
    lines = attnfuzz("findings", "show", name).out.splitlines()
    assert lines[0] == "fixed  computes a wrong output (fake, decode)"
    assert lines[1] == "  1970-01-01 00:00 UTC  failed  torch 2.12"
    assert lines[2] == "  1970-01-02 00:00 UTC  passed  torch 2.13"
    assert "the report" in lines
    assert lines[-1] == f"attnfuzz replay attnfuzz-out/findings/{name}"


def test_a_forgotten_finding_is_gone(attnfuzz: Run, name: str) -> None:
    assert attnfuzz("findings", "forget", name).code == 0
    ran = attnfuzz("findings", "show", name)
    assert ran.code == 2
    assert f"has no finding with '{name}' in its name: it has none" in ran.err


def test_a_finding_is_not_forgotten_under_a_running_campaign(attnfuzz: Run, name: str, tmp_path: Path) -> None:
    home = Home(tmp_path / "attnfuzz-out")
    with home.locked():
        ran = attnfuzz("findings", "forget", name)
    assert ran.code == 2
    assert (home.findings / name).exists()


def test_a_finding_is_shown_by_the_path_of_its_folder(attnfuzz: Run, name: str) -> None:
    by_path = attnfuzz("findings", "show", f"attnfuzz-out/findings/{name}", "--home", "attnfuzz-out")
    assert by_path.out == attnfuzz("findings", "show", name).out


@pytest.mark.parametrize("command", ["replay", "triage", "shrink", "export"])
def test_a_command_on_a_case_takes_a_part_of_a_findings_name(attnfuzz: Run, name: str, command: str) -> None:
    ran = attnfuzz(command, name[-10:])
    assert ran.code == 2
    assert "unknown backend 'fake'" in " ".join(ran.err.split())


def test_a_finding_of_another_home_is_named_with_that_home(attnfuzz: Run, tmp_path: Path) -> None:
    path, _ = archive(tmp_path / "nightly", "night 1").file(found(kind=Kind.HANG), FINGERPRINT)
    name = path.name
    assert "unknown backend 'fake'" in " ".join(attnfuzz("replay", name, "--home", "nightly").err.split())
    other = attnfuzz("replay", "trtllm", "--home", "nightly")
    assert other.code == 2
    assert "no finding of nightly has it in its name" in " ".join(other.err.split())


def test_a_part_that_several_findings_or_none_have_is_an_error_with_the_names(
    attnfuzz: Run, name: str, tmp_path: Path
) -> None:
    archive(tmp_path / "attnfuzz-out", "night 3").file(found(kind=Kind.HANG), FINGERPRINT)
    several = attnfuzz("replay", "fake-")
    assert several.code == 2
    assert name in several.err
    none = attnfuzz("replay", "trtllm")
    assert none.code == 2
    assert "no finding of attnfuzz-out has it in its name" in " ".join(none.err.split())
