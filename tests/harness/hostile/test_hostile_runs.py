"""A few hostile files, run as users run them: with workers, since only they place and launch what a case asks for."""

import contextlib
import io
import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from command_line import Attnfuzz
from damage import DAMAGES, damage
from harness_cases import decode_case
from hostile_values import hostile_bytes, hostile_json
from hypothesis import HealthCheck, Phase, given, seed, settings

from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.log import read_log
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.cli.main import main
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.reference import case_file

pytestmark = pytest.mark.slow

SHORT = Path(__file__).parents[1] / "short_seq_lens.json"
EXAMPLES = 25
LONG_EXAMPLES = 500


@pytest.fixture
def runner() -> Iterator[Runner]:
    """Workers that all commands of a test share: each would start its own."""
    with Runner(["trtllm_mha", "torch_sdpa"]) as shared:
        yield shared


def ended(*arguments: str) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    redirected = (contextlib.redirect_stdout(out), contextlib.redirect_stderr(err))
    with (
        redirected[0],
        redirected[1],
        mock.patch("sys.argv", ["attnfuzz", *arguments]),
        pytest.raises(SystemExit) as end,
    ):
        main()
    return int(end.value.code or 0), err.getvalue()


def campaign(runner: Runner, folder: Path, examples: int) -> None:
    contents = [
        json.loads(SHORT.read_text()),
        json.loads(case_file.encode(decode_case("torch_sdpa", 6, 9, padded=2))),
    ]

    @contextlib.contextmanager
    def shared(*_: object, **__: object) -> Iterator[Runner]:
        yield runner

    def run(data: bytes) -> None:
        (folder / "case.json").write_bytes(data)
        for command in (("replay",), ("export", "-o", str(folder / "script.py"))):
            code, err = ended(*command, str(folder / "case.json"))
            assert code in {0, 1, 2}, err
            assert "Traceback" not in err, (data, err)
            assert "itself failed" not in err, (data, err)

    for content in contents:
        hostile = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(seed(3)(given(hostile_bytes(hostile_json(content)))(run)))
        with (
            mock.patch("attnfuzz.harness.cli.cases.Runner", shared),
            mock.patch("attnfuzz.harness.export.shared_runner", return_value=runner),
        ):
            hostile()


def test_hostile_cases_are_run_or_refused(runner: Runner, tmp_path: Path) -> None:
    campaign(runner, tmp_path, EXAMPLES)


@pytest.mark.long
@pytest.mark.usefixtures("no_limit")
def test_hostile_cases_are_run_or_refused_for_long(runner: Runner, tmp_path: Path) -> None:
    campaign(runner, tmp_path, LONG_EXAMPLES)


@pytest.fixture
def no_limit() -> None:
    """Takes minutes."""
    signal.alarm(0)


@pytest.mark.usefixtures("no_limit")
def test_a_campaign_runs_in_a_home_that_is_damaged_everywhere(attnfuzz: Attnfuzz, home: Home) -> None:
    """Starts a campaign: what it reads, in which order, is its own."""
    good = next(path for path in home.findings.iterdir() if "OutputMismatch" in path.name)
    for number, kind in enumerate(DAMAGES):
        for name in ("case.json", "finding.json"):
            broken = home.findings / f"broken-{number}-{name}"
            shutil.copytree(good, broken)
            damage(broken / name, kind)
        damage(home.findings / f"no-folder-{number}", kind)
        case = home.corpus / "torch_sdpa" / f"broken-{number}.json"
        damage(case, kind)
    for kind, name in (("FIFO", "environment.json"), ("FIFO", "report.txt")):
        damage(good / name, kind)
    damage(home.corpus / "index.ndjson", "FIFO")
    ran = attnfuzz("fuzz", "--backend", "torch_sdpa", "--examples", "3", "--jobs", "1", "--seed", "1", "--home", "out")
    assert ran.code in {0, 1}, ran.err
    assert "Traceback" not in ran.err
    standing = Standing.of(read_log(home.log(home.ids()[-1])))
    assert standing.finished is not None
    assert standing.cases >= 3
    assert len(standing.troubles) >= 3 * len(DAMAGES) - 3
