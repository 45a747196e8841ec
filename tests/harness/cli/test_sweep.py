"""`attnfuzz sweep`, on releases of a fake project: with real workers and a search once, else in this process."""

import json
import os
from pathlib import Path
from typing import Any, Self

import defective_backend
import pytest
from campaign_events import finished, searched, slice_finished
from command_line import Attnfuzz
from harness_cases import decode_case

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.campaign.events import Event, JobFailed
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.cli.releases import sweep as command
from attnfuzz.harness.findings.archive import Archive
from attnfuzz.harness.findings.finding import Finding
from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.sandbox.check import CannotRun
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.workers.task import Task
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case


class Here:
    """A judge in this process, of backends that kill nobody."""

    def __init__(self, **_: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def start(self, backend: str) -> None:
        reason = resolve(backend).missing()
        if reason is not None:
            raise CannotRun(reason)

    def verdict(self, case: Case) -> Verdict:
        return Execution(Task(case=case, backend=case.backend), lambda _: None).run()

    def renew(self) -> None: ...


@pytest.fixture
def _judged_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "Runner", Here)


def known_case(*kv_lens: int) -> str:
    """A file with a case of release 1.0; with 9 keys its defect shows."""
    case_file.save("mine.json", decode_case("fake==1.0:decoder", *(kv_lens or (9, 2))))
    return "mine.json"


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow
def test_given_and_found_failures_are_reported_and_can_be_replayed(
    attnfuzz: Attnfuzz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With jobs and workers of a second engine, which find it through its entry point as this process does."""
    monkeypatch.setenv("PYTHONPATH", str(Path(defective_backend.__file__).parent), prepend=os.pathsep)
    ran = attnfuzz("sweep", "fake", "1.3,1.9", "--case", known_case(), "--examples", "5", "--seed", "1")
    assert ran.code == 1, ran.err
    table = [line.split() for line in ran.out[ran.out.index("release  ") :].split("\n\n")[0].splitlines()]
    assert [row[0] for row in table[1:]] == ["1.3", "1.9"]
    sent = words(ran.out)
    assert "1 mine, decoder any failure of mine.json Fails in 1.3 already, the oldest that could be run;" in sent
    assert "Found by the search in 1.3. attnfuzz replay attnfuzz-sweep/cases/" in sent
    assert "1.9 can't be run: buy a faster machine" in sent
    written = json.loads((tmp_path / "attnfuzz-sweep" / "sweep.json").read_text())
    assert [row["wanted"].get("found", []) for row in written["rows"]][:2] == [[], ["1.3"]]
    assert written["searched"]["1.3"]["examples"] == 5
    assert attnfuzz("replay", written["rows"][1]["cells"]["1.3"]["case"]).code == 1


@pytest.mark.usefixtures("_judged_here")
def test_the_table_is_written_as_markdown_too(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    attnfuzz("sweep", "fake", "1.1..1.9", "--case", known_case(), "--examples", "0")
    markdown = (tmp_path / "attnfuzz-sweep" / "sweep.md").read_text()
    assert (
        "| failure | backend | began | ended | 1.1 | 1.2 | 1.3 | 1.9 |\n|---|---|---|---|---|---|---|---|\n" in markdown
    )
    assert "| mine | `decoder` | by 1.1 | still there | **fails** | passes | **fails** | - |\n\n" in markdown
    assert "Flaky: fails in 1.1, passes in 1.2, fails in 1.3." in markdown
    assert "- 1.1 fails: `OutputMismatch at out, decode: " in markdown
    assert "`attnfuzz replay attnfuzz-sweep/cases/mine-1.1.json`" in markdown
    assert "| 1.9 |  |  | buy a faster machine |" in markdown


@pytest.mark.slow
@pytest.mark.usefixtures("_judged_here")
def test_the_table_fits_a_terminal_of_80_columns(attnfuzz: Attnfuzz) -> None:
    paths = []
    for number in range(30):
        case_file.save(f"case-{number}.json", decode_case("fake==1.0:decoder", 9))
        paths += ["--case", f"case-{number}.json"]
    ran = attnfuzz("sweep", "fake", "1.1,1.2", *paths, "--examples", "0")
    assert max(map(len, ran.out.splitlines())) <= 80
    assert ran.out.count("release ") == 2


@pytest.mark.usefixtures("_judged_here")
def test_known_failures_alone_are_run_without_a_search(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("sweep", "fake", "1.1,1.2", "--case", known_case(), "--examples", "0")
    assert ran.code == 1
    assert "drawn cases" not in ran.out
    assert "1.1 fails: mine, OutputMismatch" in ran.err
    assert ran.out.splitlines()[-2] == "2 releases: 1 failure, 0 still there."


@pytest.mark.usefixtures("_judged_here")
def test_where_no_release_fails_the_exit_code_is_0(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("sweep", "fake", "1.1,1.2", "--case", known_case(2), "--examples", "0")
    assert ran.code == 0
    assert "2 releases: none fails." in ran.out


@pytest.mark.usefixtures("_judged_here")
def test_a_case_that_fails_in_no_release_is_reported_in_one_line(attnfuzz: Attnfuzz) -> None:
    case_file.save("quiet.json", decode_case("fake==1.0:decoder", 2))
    ran = attnfuzz("sweep", "fake", "1.1,1.2", "--case", known_case(), "--case", "quiet.json", "--examples", "0")
    assert "\nNo release shows quiet.\n" in ran.out
    assert "2  quiet" not in ran.out


@pytest.mark.usefixtures("_judged_here")
def test_where_no_release_can_be_run_the_exit_code_is_2(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("sweep", "fake", "1.9", "--case", known_case(), "--examples", "0")
    assert ran.code == 2
    assert "None of 1 release could be run." in ran.out


@pytest.mark.usefixtures("_judged_here")
def test_a_sweep_that_was_interrupted_goes_on(attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[tuple[str, ...]] = []

    def interrupted(plan: Any) -> tuple[str, Standing]:
        plans.append(plan.backends)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_campaign", interrupted)
    ran = attnfuzz("sweep", "fake", "1.1,1.2", "--case", known_case(), "--home", "here")
    assert ran.code == 130
    assert "continue with: attnfuzz sweep --resume --home here" in ran.out

    def search(plan: Any) -> tuple[str, Standing]:
        plans.append(plan.backends)
        return "night", Standing()

    finding = decode_case("fake==1.1:decoder", 9)
    seen = Observation(kind=Kind.OUTPUT_MISMATCH, place="out", message="wrong")
    archive = Archive(Path("here/findings"), Path("here/unconfirmed"), campaign="night", environment={})
    filed = Finding(case=finding, first=finding, observation=seen, report="")
    archive.file(filed, Fingerprint.of(finding.backend, seen))
    monkeypatch.setattr(command, "run_campaign", interrupted)
    assert (
        "Found, but not yet run in all releases: OutputMismatch-" in attnfuzz("sweep", "--resume", "--home", "here").out
    )
    plans.clear()
    monkeypatch.setattr(command, "run_campaign", search)
    ran = attnfuzz("sweep", "--resume", "--home", "here")
    assert ran.code == 1
    assert plans == [("fake==1.1:decoder",), ("fake==1.2:decoder",)]
    assert "1  mine, decoder" in ran.out


@pytest.mark.parametrize(
    ("events", "why"),
    [
        (
            [JobFailed(at=1.0, job=0, text="Traceback:\nNotTold: more\n(job process 0 ended with status 1)")],
            "the search failed: NotTold: more",
        ),
        (
            [slice_finished("fake==1.2:decoder", unsupported={"no sinks": 9}), finished()],
            "no case was judged: no case is supported; most frequent reason: no sinks",
        ),
        (
            [slice_finished("fake==1.2:decoder", unsupported={"no sinks": 9}), searched("other"), finished()],
            "fake==1.2:decoder supports none of 9 cases: no sinks",
        ),
    ],
)
@pytest.mark.usefixtures("_judged_here")
def test_a_search_without_a_result_is_reported_beside_its_release(
    attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch, events: list[Event], why: str
) -> None:
    monkeypatch.setattr(command, "run_campaign", lambda _plan: ("night", Standing.of(events)))
    ran = attnfuzz("sweep", "fake", "1.2", "--case", known_case())
    assert f"1.2 can't be run: {why}\n" in ran.out


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ([], "no engine: write it like attnfuzz sweep fake VERSION..latest, or give sglang"),
        (
            ["other", "0.9"],
            "no releases of 'other' are known: write it like attnfuzz sweep fake VERSION..latest, or give sglang",
        ),
        (["fake"], "no versions: write them like 0.5.9..latest"),
        (["fake", "new"], "'new' is not a version"),
        (["fake", "3.0..latest"], "no version is in 3.0..latest: there are 1.0 to 1.9"),
        (["fake", "1.0", "--backend", "encoder"], "--backend encoder: of releases of fake, give decoder"),
        (["fake", "1.0", "--examples", "3", "--time", "1m"], "are both budgets"),
        (["fake", "1.0", "--case", "other.json"], "other.json is a case of torch_sdpa: a sweep of fake replays"),
        (["fake", "1.0", "--case", "broken.json"], "broken.json"),
        (["fake", "1.0", "--case", "absent.json"], "'absent.json' does not exist"),
        (["--resume", "--home", "."], "cannot read sweep.json: No such file or directory. Name the --home of a sweep"),
        (["fake", "--resume", "--home", "."], "leave [ENGINE] out"),
        (["--seed", "1", "--resume", "--home", "."], "leave --seed out"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(attnfuzz: Attnfuzz, arguments: list[str], sent: str) -> None:
    case_file.save("other.json", decode_case("torch_sdpa"))
    Path("broken.json").write_text("{")
    ran = attnfuzz("sweep", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert sent in ran.err.splitlines()[-1]
    assert not Path("attnfuzz-sweep").exists()


@pytest.mark.usefixtures("_judged_here")
def test_two_cases_with_one_name_are_two_rows(attnfuzz: Attnfuzz) -> None:
    known_case()
    Path("other").mkdir()
    case_file.save("other/mine.json", decode_case("fake==1.0:decoder", 8))
    ran = attnfuzz("sweep", "fake", "1.1", "--case", "mine.json", "--case", "other/mine.json", "--examples", "0")
    assert "1  mine, decoder" in ran.out
    assert "2  mine-2, decoder" in ran.out
