"""The home of `attnfuzz serve` is read by `report` and `findings`; other commands name the one to use."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_llm_server import FakeFault, FakeLlm
from served_here import announce_traces, draw_again, wait_for_nothing

from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.serve.campaign import ServePlan
from attnfuzz.harness.serve.run import run_against

Run = Callable[..., Any]


@pytest.fixture
def finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a finding in the home `attnfuzz-serve`."""
    wait_for_nothing(monkeypatch)
    announce_traces(monkeypatch)
    draw_again(monkeypatch)
    with FakeLlm(FakeFault.PREFIX) as llm:
        plan = ServePlan(url=llm.url, out=tmp_path / "attnfuzz-serve", mine=True, traces=1)
        (filed,) = run_against(plan).standing.filed.values()
    return filed.name


def test_findings_of_a_server_are_listed_and_shown_with_their_script(attnfuzz: Run, finding: str) -> None:
    listed = attnfuzz("findings", "list", "--home", "attnfuzz-serve", "--json", "list.json")
    assert listed.code == 0, listed.err
    state, *_ = listed.out.splitlines()[1].split()
    assert state == "new"
    assert "needs one after another, shared prefix" in " ".join(listed.out.split())
    (row,) = json.loads(Path("list.json").read_text())["findings"]
    assert (row["name"], row["kind"], row["requests"]) == (finding, "TokenMismatch", 2)
    shown = attnfuzz("findings", "show", "Wrong", "--home", "attnfuzz-serve", "--json", "show.json")
    assert (
        shown.out.splitlines()[0] == "new  TokenMismatch (8 of 8 runs failed), needs one after another, shared prefix"
    )
    assert "server sglang 0.5.5-fake" in shown.out
    assert "all before  prompt of " in shown.out
    assert shown.out.splitlines()[-1] == f"python attnfuzz-serve/findings/{finding}/repro.py"
    assert json.loads(Path("show.json").read_text())["finding"] == row


def test_a_finding_of_a_server_is_forgotten_by_its_whole_name(attnfuzz: Run, finding: str) -> None:
    assert "did you mean" in attnfuzz("findings", "forget", "Wrong", "--home", "attnfuzz-serve").err
    assert attnfuzz("findings", "forget", finding, "--home", "attnfuzz-serve").code == 0
    assert "has no findings" in attnfuzz("findings", "list", "--home", "attnfuzz-serve").err


def test_reports_of_a_campaign_against_a_server_are_written_again(attnfuzz: Run, finding: str) -> None:
    home = Home(Path("attnfuzz-serve"))
    page = home.folder(home.ids()[-1]) / "report.html"
    before = page.read_bytes()
    page.unlink()
    ran = attnfuzz("report", "--home", "attnfuzz-serve", "--json", "answer.json")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("1 finding in 1 trace")
    assert page.read_bytes() == before
    assert [each["name"] for each in json.loads(Path("answer.json").read_text())["findings"]] == [finding]
    assert attnfuzz("report", "--home", "attnfuzz-serve", "--junit", "j.xml").code == 0
    assert "TokenMismatch" in Path("j.xml").read_text()


def test_a_command_for_cases_refuses_the_home_of_a_server_in_a_line(attnfuzz: Run, finding: str) -> None:
    for line, said in (
        ("report --home attnfuzz-serve --markdown m.md", "give --html or --junit"),
        ("compare attnfuzz-serve attnfuzz-serve", "attnfuzz findings list"),
        ("fuzz --home attnfuzz-serve --examples 1", "give another --home"),
        ("fuzz --home attnfuzz-serve --resume", "attnfuzz serve --resume"),
        (f"replay attnfuzz-serve/findings/{finding}", f"run python attnfuzz-serve/findings/{finding}/repro.py"),
    ):
        ran = attnfuzz(*line.split())
        assert ran.code != 0, line
        (error,) = (text for text in ran.err.splitlines() if text.startswith("Error: "))
        assert said in error, line
        assert not Path("attnfuzz-serve/corpus").exists(), line
