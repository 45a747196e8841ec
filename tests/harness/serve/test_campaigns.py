"""A campaign against a stand-in: logged, filed, minimized, run again the next night, known by a ledger, resumed."""

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from fake_llm_server import TOKEN, FakeFault, FakeLlm
from served_here import draw_again, wait_for_nothing

from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.ledger import file as kernel_ledger
from attnfuzz.harness.serve import ledger as server_ledger
from attnfuzz.harness.serve.campaign import ServePlan
from attnfuzz.harness.serve.check import Judged, judge_trace
from attnfuzz.harness.serve.client import Client, ServerError, TookTooLong
from attnfuzz.harness.serve.discovery import SECONDS
from attnfuzz.harness.serve.events import ServeFinished, ServeProgress, ServeResumed
from attnfuzz.harness.serve.findings import TRACE, read_serve_records
from attnfuzz.harness.serve.hunt import FaultHunter
from attnfuzz.harness.serve.judging import ServedFault, ServedKind
from attnfuzz.harness.serve.launch import LaunchedServer
from attnfuzz.harness.serve.ledger import ServeLedgerError, ServerEntry, ServerLedger
from attnfuzz.harness.serve.log import read_serve_log
from attnfuzz.harness.serve.run import Served, resume_against, run_against
from attnfuzz.harness.serve.script import script_of
from attnfuzz.harness.serve.stages import Hunted
from attnfuzz.harness.serve.standing import ServeStanding
from attnfuzz.harness.serve.surface import Ability
from attnfuzz.harness.serve.target import TestedServer
from attnfuzz.harness.serve.trace import Abort, Burst, Prompt, RequestTrace, ServedRequest

pytestmark = pytest.mark.slow
"""Campaigns take a second each."""

Fake = Callable[[FakeFault], FakeLlm]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in has nothing to wait for."""
    wait_for_nothing(monkeypatch)


def _run(llm: FakeLlm, home: Path, **changes: Any) -> Served:
    settings: dict[str, Any] = {"mine": True, "concurrency": 8, "traces": 8, "seed": 1, "timeout": 60.0} | changes
    return run_against(ServePlan(url=llm.url, out=home, **settings))


def test_a_right_server_passes_and_the_log_tells_the_same(fake: Fake, tmp_path: Path) -> None:
    served = _run(fake(FakeFault.NONE), tmp_path)
    assert served.standing.clean
    assert served.standing.traces == 8
    events, torn = read_serve_log(Home(tmp_path).log(served.campaign))
    assert isinstance(events[-1], ServeFinished)
    assert torn == 0
    assert sum(each.traces for each in events if isinstance(each, ServeProgress)) == 8


def test_a_finding_is_minimized_and_has_a_script_and_reports(fake: Fake, tmp_path: Path) -> None:
    llm = fake(FakeFault.PREFIX)
    served = _run(llm, tmp_path, until_finding=True)
    (finding,) = served.standing.filed.values()
    assert finding.fault.kind is ServedKind.WRONG_TOKENS
    assert len(finding.trace.requests) == 2
    assert "shared prefix" in finding.needs
    folder = Path(finding.path)
    names = {"trace.json", "first.json", "report.txt", "repro.py", "environment.json", "finding.json"}
    assert {path.name for path in folder.iterdir()} == names
    assert "sglang 0.5.5-fake" in (folder / "environment.json").read_text()
    html, junit = served.reports
    assert "TokenMismatch" in html.read_text()
    assert ET.parse(junit).getroot().attrib["failures"] == "1"  # noqa: S314 - written here


def test_a_finding_of_one_rank_is_minimized_to_it(fake: Fake, tmp_path: Path) -> None:
    served = _run(fake(FakeFault.RANK), tmp_path, until_finding=True)
    (finding,) = served.standing.filed.values()
    assert finding.fault.kind is ServedKind.WRONG_LOGPROBS
    (request,) = finding.trace.requests
    assert request.rank == 1
    assert "rank" in finding.needs
    assert '"routed_dp_rank": 1' in Path(finding.path, "repro.py").read_text()


@pytest.mark.slow
def test_the_script_of_a_finding_shows_it_with_the_standard_library_alone(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process: it is what a user runs, without attnfuzz."""
    draw_again(monkeypatch)
    served = _run(fake(FakeFault.PREFIX), tmp_path, until_finding=True)
    (finding,) = served.standing.filed.values()
    script = Path(finding.path, "repro.py")
    for server, code in ((fake(FakeFault.PREFIX), 1), (fake(FakeFault.NONE), 0)):
        ran = subprocess.run(
            [sys.executable, "-I", "-S", str(script), server.url],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ran.returncode == code, ran.stdout + ran.stderr


@pytest.mark.slow
def test_the_script_of_a_leak_aborts_as_the_campaign_did_and_reads_the_metrics(fake: Fake, tmp_path: Path) -> None:
    """In a process, as above."""
    closed = ServedRequest(prompt=Prompt(stream=0, shared=9), tokens=3, abort=Abort.SENT)
    trace = RequestTrace(bursts=(Burst(requests=(closed,)),))
    script = tmp_path / "repro.py"
    for fault, code, said in ((FakeFault.LEAK, 1, "sglang:token_usage"), (FakeFault.NONE, 0, "alike")):
        llm = fake(fault)
        server = TestedServer(client=Client.of(llm.url), mine=True, concurrency=2, timeout=60)
        server.find_out()
        source = script_of(server, trace, ServedFault(ServedKind.LEAKED, "", "pool"), 0.0, runs=1)
        # The script waits for lagging counters, and two seconds between flushes: the stand-in is ready sooner.
        script.write_text(source.replace("range(50 ", "range(2 ").replace("time.sleep(2)", "time.sleep(0.1)"))
        line = [sys.executable, "-I", "-S", str(script)]
        ran = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
        assert (ran.returncode, said in ran.stdout) == (code, True), ran.stdout + ran.stderr


def test_findings_are_run_again_by_the_next_campaign(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_again(monkeypatch)
    _run(fake(FakeFault.PREFIX), tmp_path, until_finding=True)
    second = _run(fake(FakeFault.PREFIX), tmp_path, traces=1)
    assert [each.state for each in second.standing.checked.values()] == [State.OPEN]
    third = _run(fake(FakeFault.NONE), tmp_path, traces=1)
    assert [(each.state, each.runs) for each in third.standing.checked.values()] == [(State.FIXED, 4)]
    assert third.standing.clean
    fourth = _run(fake(FakeFault.PREFIX), tmp_path, traces=1, until_finding=True)
    assert [each.state for each in fourth.standing.checked.values()] == [State.RETURNED]


def test_a_flaky_finding_is_fixed_after_the_number_of_runs_that_its_rate_requires(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_again(monkeypatch)
    llm = fake(FakeFault.PREFIX)
    llm.every = 3
    (finding,) = _run(llm, tmp_path, until_finding=True).standing.filed.values()
    assert (finding.times, finding.runs) in {(2, 8), (3, 8)}, "the rate of the minimized trace"
    assert f"{finding.times} of 8 runs failed" in finding.report
    llm.every = 12
    (rare,) = _run(llm, tmp_path, traces=1, until_finding=True).standing.checked.values()
    assert rare.state is State.OPEN
    assert rare.runs > 4, "more than confirm a failure"
    (fixed,) = _run(fake(FakeFault.NONE), tmp_path, traces=1).standing.checked.values()
    assert fixed.state is State.FIXED
    assert fixed.runs > rare.runs


def test_until_finding_goes_on_after_a_failure_that_does_not_come_back(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hunt, calls = FaultHunter.hunt, itertools.count()

    def lost_at_first(hunter: FaultHunter, trace: RequestTrace, fault: ServedFault, **more: Any) -> Hunted:
        if next(calls):
            return hunt(hunter, trace, fault, **more)
        return Hunted(trace=trace, fault=fault, times=0, runs=4)

    monkeypatch.setattr(FaultHunter, "hunt", lost_at_first)
    draw_again(monkeypatch)
    standing = _run(fake(FakeFault.PREFIX), tmp_path, traces=60, until_finding=True).standing
    assert (len(standing.unconfirmed), len(standing.filed)) == (1, 1)


def test_a_failure_that_always_comes_is_not_minimized_to_one_by_chance(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt that comes again is found in the cache: always if it comes after, and at times if it comes at once."""
    fault, chances = ServedFault(ServedKind.WRONG_TOKENS, ""), itertools.count()

    def judge(_: FaultHunter, trace: RequestTrace) -> Judged:
        again = len(trace.requests) > 1 and (trace.most_at_once == 1 or next(chances) % 5 > 1)
        return Judged(faults=(fault,) if again else ())

    monkeypatch.setattr(FaultHunter, "judge", judge)
    server = TestedServer(client=Client.of(fake(FakeFault.NONE).url), mine=True, concurrency=2, timeout=60)
    server.find_out()
    request = ServedRequest(prompt=Prompt(stream=0, shared=9), tokens=3)
    trace = RequestTrace(bursts=(Burst(requests=(request,)), Burst(requests=(request,), after_all=True)))
    hunted = FaultHunter(server=server, floor=0.0, restarted=lambda *_: None).hunt(trace, fault, seconds=60)
    assert hunted.needs == ("one after another",)
    assert (hunted.times, hunted.runs) == (8, 8)
    assert [(each.prompt.length, each.tokens) for each in hunted.trace.requests] == [(1, 1), (1, 1)]


def test_a_finding_that_could_not_be_run_often_enough_is_not_fixed(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_again(monkeypatch)
    (finding,) = _run(fake(FakeFault.PREFIX), tmp_path, until_finding=True).standing.filed.values()
    monkeypatch.setattr("attnfuzz.harness.serve.campaign.MOST_SECONDS_TO_CHECK", 0.0)
    second = _run(fake(FakeFault.NONE), tmp_path, traces=1).standing
    assert not second.checked
    assert second.troubles[0].startswith(f"finding {finding.name} passed 1 of the 5 runs after which it would be fixed")
    monkeypatch.setattr("attnfuzz.harness.serve.campaign.MOST_SECONDS_TO_CHECK", 60.0)
    third = _run(fake(FakeFault.PREFIX), tmp_path, traces=1, until_finding=True).standing
    assert [each.state for each in third.checked.values()] == [State.OPEN], "it was never fixed"


def test_a_finding_with_an_impossible_rate_is_left_out(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_again(monkeypatch)
    llm = fake(FakeFault.PREFIX)
    (finding,) = _run(llm, tmp_path, until_finding=True).standing.filed.values()
    history = Path(finding.path, "finding.json")
    history.write_text(history.read_text().replace('"times": 8', '"times": 9'))
    second = _run(llm, tmp_path, traces=1, until_finding=True).standing
    assert not second.checked
    assert "9 of 8 runs can't have failed" in second.troubles[0]


def test_a_failure_of_the_ledger_is_known(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_again(monkeypatch)
    ledger = tmp_path / "attnfuzz-ledger.toml"
    ledger.write_text(
        '[[server]]\nkind = "TokenMismatch"\nfeatures = ["shared prefix"]\nserver = "sglang"\nreason = "we know"\n'
        '[[server]]\nkind = "ServerHung"\nreason = "not seen"\n'
    )
    served = _run(fake(FakeFault.PREFIX), tmp_path / "home", traces=1, ledger=ledger)
    assert [each.known for each in served.standing.filed.values()] == ["we know"]
    assert served.standing.remarks == ["ServerHung"]
    assert not kernel_ledger.Ledger.load(ledger).entries, "tables of servers are none of kernels"
    assert kernel_ledger.DEFAULT_NAME == server_ledger.DEFAULT_NAME


def test_failures_of_one_cause_are_its_symptoms_and_are_minimized_once(fake: Fake, tmp_path: Path) -> None:
    served = _run(fake(FakeFault.PREFIX), tmp_path, traces=12)
    standing = served.standing
    (cause,) = standing.failing
    explained = standing.symptoms[cause.name].total()
    assert explained == standing.suspects.total() > 1, "each failing trace was run without a shared prefix, and passed"
    assert standing.minimized.total() < 3
    assert standing.verdict.startswith(f"1 cause ({explained} failures) in 12 traces")
    html, junit = (path.read_text() for path in served.reports)
    assert standing.symptoms_of(cause.name) in html
    assert f"symptoms: {standing.symptoms_of(cause.name)}" in junit
    assert ET.fromstring(junit).attrib["failures"] == "1"  # noqa: S314 - written here
    ((record,), _) = read_serve_records(Home(tmp_path).findings)
    assert sum(record.symptoms.values()) == explained


def test_two_bugs_of_one_server_are_two_causes(fake: Fake, tmp_path: Path) -> None:
    standing = _run(fake(FakeFault.BOTH), tmp_path, traces=8).standing
    assert {each.needs for each in standing.failing} >= {("at once",), ("one after another", "shared prefix")}
    assert standing.suspects.total() > len(standing.failing)


def test_the_causes_of_the_last_campaign_explain_failures(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_again(monkeypatch)
    (first,) = _run(fake(FakeFault.PREFIX), tmp_path, until_finding=True).standing.failing
    standing = _run(fake(FakeFault.PREFIX), tmp_path, traces=3).standing
    assert not standing.filed
    assert standing.symptoms[first.name].total() == standing.suspects.total() > 0


def test_an_entry_of_the_ledger_knows_a_cause_by_any_kind_of_wrong_answer() -> None:
    entry = ServerEntry(reason="we know", kind=ServedKind.WRONG_LOGPROBS, features=("at once",))
    for kind, known in ((ServedKind.WRONG_TOKENS, True), (ServedKind.ERROR, False)):
        assert entry.matches(ServedFault(kind, ""), ("at once", "n > 1"), "name", "vllm") is known


@pytest.mark.parametrize(
    "text",
    [
        '[[server]]\nreason = "any"\n',
        '[[server]]\nkind = "Nothing"\nreason = "x"\n',
        "[[server]",
        "[[server]]\nkid = 1",
    ],
)
def test_a_wrong_ledger_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ledger.toml"
    path.write_text(text)
    with pytest.raises(ServeLedgerError):
        ServerLedger.load(path)


def test_a_server_that_dies_ends_the_campaign_with_the_trace_on_file(fake: Fake, tmp_path: Path) -> None:
    served = _run(fake(FakeFault.CRASH), tmp_path, traces=200)
    standing = served.standing
    assert standing.finished is not None
    assert "give --start" in standing.finished.ended
    (kept,) = standing.unconfirmed
    assert kept.fault.kind is ServedKind.DIED
    trace = msgspec.json.decode(Path(kept.path, TRACE).read_bytes(), type=RequestTrace)
    assert any(each.scored for each in trace.requests)
    assert not standing.clean


class StartedHere(LaunchedServer):
    """A stand-in in this process, which restarts at once, in place of a server that is a process."""

    llm: FakeLlm

    @property
    def exit_status(self) -> int | None:
        return 1 if self.llm.dead else None

    def start(self, stopped: Callable[[], bool] = lambda: False) -> float:
        del stopped
        self.last_words = "Killed by the second scored prompt"
        self.llm.start_again()
        return 0.0


def test_a_crash_is_found_the_server_restarted_and_the_trace_minimized(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = fake(FakeFault.CRASH)
    monkeypatch.setattr(StartedHere, "llm", llm, raising=False)
    plain, *scored = (
        ServedRequest(prompt=Prompt(stream=each, shared=9), tokens=3, scored=each > 0) for each in range(3)
    )
    trace = RequestTrace(bursts=(Burst(requests=(scored[0], plain)), Burst(requests=(scored[1],), after_all=True)))
    monkeypatch.setattr("attnfuzz.harness.serve.draw.SlicesAhead._draw", lambda *_: [trace])
    monkeypatch.setattr("attnfuzz.harness.serve.run.LaunchedServer", StartedHere)
    # Each trace that fails restarts the server: no clock decides how small the finding becomes.
    monkeypatch.setattr("attnfuzz.harness.serve.campaign.MOST_SECONDS_TO_SHRINK", 1e6)
    plan = ServePlan(url=llm.url, out=tmp_path, start="server", concurrency=8, traces=60, seed=1, until_finding=True)
    standing = run_against(plan).standing
    (finding,) = standing.filed.values()
    assert finding.fault.kind is ServedKind.DIED
    assert finding.needs == ("scored prompt",), "at once or one after another"
    assert [(each.prompt.length, each.scored) for each in finding.trace.requests] == [(1, True), (1, True)]
    assert len(standing.restarts) > 2
    assert Path(finding.path, "server.log").read_text() == "Killed by the second scored prompt"
    assert [each.ability for each in standing.avoided] == [Ability.SCORED]
    assert Ability.FLUSH in (standing.surface.can if standing.surface else ()), "a server that is started here is ours"


def test_a_feature_that_kills_the_server_is_no_longer_drawn(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, drawn = fake(FakeFault.CRASH), list[bool]()
    monkeypatch.setattr(StartedHere, "llm", llm, raising=False)
    monkeypatch.setattr("attnfuzz.harness.serve.run.LaunchedServer", StartedHere)
    judge = FaultHunter.judge

    def noted(hunter: FaultHunter, trace: RequestTrace) -> Judged:
        drawn.append(any(each.scored for each in trace.requests))
        return judge(hunter, trace)

    monkeypatch.setattr(FaultHunter, "judge", noted)
    plan = ServePlan(url=llm.url, out=tmp_path, start="server", concurrency=8, traces=20, seed=1)
    standing = run_against(plan).standing
    assert [each.ability for each in standing.avoided] == [Ability.SCORED]
    assert standing.suspects.total() == 1
    assert standing.traces == 20
    last = len(drawn) - drawn[::-1].index(True)
    assert not any(drawn[last:])
    assert len(drawn) - last >= 10, "most of the campaign went on without it"


def test_a_server_that_is_slow_after_its_start_does_not_hang(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that compiles at its first request, for longer than --timeout."""
    llm, ask, answered = fake(FakeFault.NONE), Client.ask, set[int]()
    monkeypatch.setattr(StartedHere, "llm", llm, raising=False)

    def slow(client: Client, method: str, path: str, body: Any = None, *, timeout: float, **more: Any) -> Any:
        if path == "/generate" and llm.starts not in answered:
            if timeout < SECONDS:
                raise TookTooLong(f"no answer within {timeout:g} s")
            answered.add(llm.starts)
        return ask(client, method, path, body, timeout=timeout, **more)

    monkeypatch.setattr(Client, "ask", slow)
    client = Client.of(llm.url)
    launched = StartedHere("server", client, Path(), ready=60)
    server = TestedServer(client=client, mine=True, concurrency=2, timeout=60, launched=launched)
    server.restart()
    server.find_out()
    server.restart()
    together = RequestTrace(bursts=(Burst(requests=(ServedRequest(prompt=Prompt(stream=0, shared=9), tokens=3),) * 2),))
    assert judge_trace(server, together, 0.0).faults == ()
    server.launched = None
    llm.start_again()
    FaultHunter(server=server, floor=0.0, restarted=lambda *_: None)._well_again("a death, by others")
    assert judge_trace(server, together, 0.0).faults == ()


def test_a_busy_server_is_no_finding(fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="busy with requests of others"):
        _run(fake(FakeFault.BUSY), tmp_path)


def test_a_server_of_others_is_neither_flushed_nor_closed_on(fake: Fake, tmp_path: Path) -> None:
    llm = fake(FakeFault.NONE)
    assert _run(llm, tmp_path, mine=False, traces=5).standing.clean
    assert not {"/flush_cache", "/abort_request"} & set(llm.paths)
    assert llm.most_running <= 8


def test_no_file_of_a_campaign_has_the_token(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    served = _run(fake(FakeFault.TOKEN), tmp_path, token_env="MY_TOKEN", traces=2)  # noqa: S106 - a variable's name
    assert served.standing.clean
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN in path.read_text()]


def test_a_campaign_goes_on_after_its_last_event(fake: Fake, tmp_path: Path) -> None:
    llm = fake(FakeFault.NONE)
    served = _run(llm, tmp_path, traces=12)
    log = Home(tmp_path).log(served.campaign)
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:6]) + lines[6][:20])
    again = resume_against(tmp_path)
    assert again.campaign == served.campaign
    assert again.standing.traces == 12
    assert resume_against(tmp_path).standing.traces == 12, "a finished one has its reports written again"


def test_a_campaign_whose_server_died_goes_on_when_the_server_is_back(fake: Fake, tmp_path: Path) -> None:
    llm = fake(FakeFault.CRASH)
    died = _run(llm, tmp_path, traces=12)
    assert died.standing.finished is not None
    assert died.standing.finished.ended
    llm.fault = FakeFault.NONE
    llm.start_again()
    standing = resume_against(tmp_path).standing
    assert standing.finished is not None
    assert not standing.finished.ended
    assert standing.traces == 12
    events, _ = read_serve_log(Home(tmp_path).log(died.campaign))
    resumed = next(number for number, event in enumerate(events) if isinstance(event, ServeResumed))
    assert ServeStanding.of(events[: resumed + 1]).finished is None, "killed now, it would be unfinished"


def test_the_home_of_other_campaigns_is_refused(fake: Fake, tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.log(home.new_id()).write_text('{"event":"CampaignStarted"}\n')
    with pytest.raises(ServerError, match="not a home of attnfuzz serve"):
        _run(fake(FakeFault.NONE), tmp_path)
