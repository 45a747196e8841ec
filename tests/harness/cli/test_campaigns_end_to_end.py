"""A whole campaign, from the command line to the reports, night after night."""

import re
from pathlib import Path

import pytest
from command_line import Attnfuzz
from team_backend import NAME as MINE
from team_backend import write_backend

from attnfuzz.harness.campaign.events import FindingChecked, FindingFiled
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.log import read_log
from attnfuzz.harness.findings.state import State

pytestmark = pytest.mark.slow

TUTORIAL = Path(__file__).parents[3] / "docs" / "tutorials" / "first-finding.md"

HOME = Home(Path("attnfuzz-out"))


def test_a_bug_is_new_then_fixed_then_back(attnfuzz: Attnfuzz) -> None:
    def night(*, wrong: bool) -> tuple[int, str, set[tuple[str, State]]]:
        write_backend(Path(), wrong=wrong)
        ran = attnfuzz("fuzz", "--backend", MINE, "--examples", "12", "--seed", "5")
        sent = [
            event for event in read_log(HOME.log(HOME.ids()[-1])) if isinstance(event, FindingFiled | FindingChecked)
        ]
        return ran.code, ran.out, {(event.name, event.state) for event in sent}

    code, out, first = night(wrong=True)
    assert code == 1
    assert {state for _, state in first} == {State.NEW}
    names = {name for name, _ in first}
    assert f"{len(names)} new finding" in out

    code, out, second = night(wrong=False)
    assert code == 0
    assert second == {(name, State.FIXED) for name in names}
    assert f"No findings, {len(names)} fixed" in out

    code, out, third = night(wrong=True)
    assert code == 1
    assert third == {(name, State.RETURNED) for name in names}
    assert f"{len(names)} returned" in out


def test_the_first_tutorial_shows_the_case_and_the_finding_of_its_command_which_has_a_script(
    attnfuzz: Attnfuzz,
) -> None:
    page = TUTORIAL.read_text()
    (command,) = re.findall(r"^\$ attnfuzz (fuzz .*)$", page, re.MULTILINE)
    ran = attnfuzz(*command.split())
    assert ran.code == 1
    (case,) = re.findall(r"^case .*?^needs .*?$", page, re.MULTILINE | re.DOTALL)
    assert case in ran.out
    (finding,) = set(re.findall(r"attnfuzz-out/findings/[\w@-]+", page))
    assert finding in ran.out
    assert "Exit code: 0 nothing is wrong, 1 the fault shows" in (Path(finding) / "repro.py").read_text()
    assert "without a script" not in ran.out
