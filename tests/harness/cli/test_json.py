"""`--json`: each command that answers has it, and its answers and their documentation are of one type."""

import json
from collections.abc import Callable
from pathlib import Path

import fake_archive
import json_reference
import msgspec
import pytest
from campaign_events import finished, started, without_sinks
from command_line import Attnfuzz, commands
from harness_cases import decode_case
from refusals import refused

from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.log import EventLog
from attnfuzz.harness.cli.answers import CampaignAnswer
from attnfuzz.harness.cli.main import cli
from attnfuzz.reference import case_file

SCHEMA = Path(__file__).parents[3] / "docs/reference/json-schema.json"


def test_every_command_with_an_answer_is_documented() -> None:
    """`export` has a script as its answer, and `init`, `findings forget` and `ledger rewrite` none."""
    named = {" ".join(names): command for names, command in commands(cli)}
    answering = {name for name, command in named.items() if any("--json" in option.opts for option in command.params)}
    assert answering == set(json_reference.ANSWERS)
    assert named.keys() - answering == {"export", "init", "findings forget", "ledger rewrite"}


def test_the_schema_is_that_of_the_types() -> None:
    """If it is not: python tests/fakes/json_reference.py > docs/reference/json-schema.json."""
    assert SCHEMA.read_text() == json_reference.text()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Two nights with a cause that has several findings, one of which is on file."""
    home = Home(tmp_path / "attnfuzz-out")
    case = decode_case("torch_sdpa")
    for night in ("20260501", "20260502"):
        with EventLog(home.log(night)) as log:
            for event in (started("torch_sdpa"), *without_sinks(case), finished()):
                log(event)
    fake_archive.archive(home.path).file(fake_archive.found(), fake_archive.FINGERPRINT)
    case_file.save(tmp_path / "case.json", case)
    return home


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    "line",
    [
        "report",
        "compare attnfuzz-out/campaigns/20260501 attnfuzz-out/campaigns/20260502",
        "findings list",
        "findings show Mismatch",
        "corpus add case.json",
        "corpus list",
        "corpus prune --dry-run",
        "bugs list",
        "bugs show sglang-21649",
        "defects list",
        "backends torch_sdpa",
    ],
)
def test_an_answer_on_standard_output_is_alone_there_and_of_its_type(attnfuzz: Attnfuzz, line: str) -> None:
    arguments = line.split()
    text = attnfuzz(*arguments)
    ran = attnfuzz(*arguments, "--json", "-")
    assert (ran.code, text.code) == (0, 0), ran.err
    command = next(name for name in json_reference.ANSWERS if line.startswith(name))
    kind, *_ = json_reference.ANSWERS[command]
    answer = msgspec.json.decode(ran.out, type=kind)
    assert json.loads(ran.out) == json.loads(msgspec.json.encode(answer))
    assert text.out.splitlines()[-1].strip() in ran.err or "corpus add" in line


@pytest.mark.usefixtures("home")
def test_an_answer_goes_to_a_file_beside_the_text(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("report", "--json", "answer.json")
    answer = json.loads(Path("answer.json").read_text())
    assert ran.out.startswith(f"{answer['result']}.\n")
    (cause,) = answer["causes"]
    assert cause["needs"] == ["sinks"]
    assert len(cause["findings"]) == 4
    assert not answer["clean"]


def test_an_answer_that_can_not_be_written_is_refused_before_the_command_runs(attnfuzz: Attnfuzz) -> None:
    refused(attnfuzz("fuzz", "--json", "absent/answer.json"), "--json", "'absent' is not a folder")
    assert not Path("attnfuzz-out").exists()


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("line", "lines"),
    [("report", 1), ("findings list", 1), ("corpus list", 0), ("backends torch_sdpa", 1), ("bugs sglang-21649", 1)],
)
def test_quiet_prints_the_result_only(attnfuzz: Attnfuzz, line: str, lines: int) -> None:
    ran = attnfuzz(*line.split(), "-q")
    assert ran.code == 0
    assert len(ran.out.splitlines()) == lines
    assert not ran.err


@pytest.mark.usefixtures("home")
def test_verbose_prints_more(attnfuzz: Attnfuzz) -> None:
    assert "attnfuzz-out/findings/" not in attnfuzz("findings", "list").out
    assert "attnfuzz-out/findings/" in attnfuzz("findings", "list", "-v").out.replace("\n", "").replace(" ", "")


@pytest.mark.parametrize("command", ["replay", "triage", "shrink", "export"])
def test_a_command_that_runs_a_case_says_first_that_it_starts(attnfuzz: Attnfuzz, command: str) -> None:
    Path("case.json").write_text("{}")
    ran = attnfuzz(command, "case.json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("Starting: loading torch and the backends.\nError: ")
    assert "Starting" not in attnfuzz(command, "case.json", "-q").err


def test_a_campaign_says_at_once_that_it_starts_and_answers_at_its_end(
    attnfuzz: Attnfuzz, sent: Callable[..., None]
) -> None:
    sent(started("torch_sdpa"), *without_sinks(decode_case("torch_sdpa")), finished())
    line = ("fuzz", "--backend", "torch_sdpa", "--seed", "7")
    assert attnfuzz(*line).out.startswith("Starting: ")
    result = "1 new cause (4 failures) over 1:00:00"
    assert attnfuzz(*line, "-q").out == f"{result} (seed 7).\n"
    ran = attnfuzz(*line, "--json", "-")
    answer = msgspec.json.decode(ran.out, type=CampaignAnswer)
    assert (ran.code, answer.result, len(answer.causes)) == (1, result, 1)
    assert "Starting: " in ran.err
