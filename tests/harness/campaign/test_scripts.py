"""Scripts that a job makes of the failures that it caught, and whose fault these are."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from fake_search import decode, observed
from msgspec.structs import replace

from attnfuzz.harness.campaign import scripts
from attnfuzz.harness.export import CannotExport, NeedsFiles, carried
from attnfuzz.harness.export.proof import Proof
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.messages import Caught, HandedOver
from attnfuzz.harness.triage.culprit import Culprit
from attnfuzz.harness.verdict.blame import Blame, Blamed
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.recurrence import Recurrence, Rerun
from attnfuzz.harness.workers.supervisor import HandlerError

CAUGHT = Caught(
    fingerprint=Fingerprint.of("fake", observed()),
    first=decode(7),
    case=decode(7),
    observation=observed(),
    verdict=Verdict(observations=(observed(),)),
)


class Renewed:
    """Stands in for a runner: counts how often a fresh worker is asked for."""

    def __init__(self) -> None:
        self.times = 0

    def renew(self) -> None:
        self.times += 1


@pytest.mark.parametrize(("error", "renewed"), [(CannotExport("no source"), 0), (HandlerError("Traceback"), 1)])
def test_a_finding_without_a_script_says_why(monkeypatch: pytest.MonkeyPatch, error: Exception, renewed: int) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(scripts, "Exporter", fail)
    runner = Renewed()
    handed = scripts.script_of(CAUGHT, cast("Runner", runner))
    assert handed.script is None
    assert str(error) in handed.obstacle
    assert runner.times == renewed


class NeedsKernel:
    """Stands in for an exporter whose script needs `file`, and lists what it is allowed to contain."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.allowed: list[Path] = []

    def allow(self, files: Sequence[Path]) -> None:
        self.allowed.extend(files)

    def best_script(self) -> str:
        if self._file not in self.allowed:
            raise NeedsFiles("attend is not part of attnfuzz", [self._file])
        return "the script"


@pytest.mark.parametrize(
    ("needed", "most_bytes", "contained"),
    [
        ("mine.py", 1000, True),
        ("kernel.cpp", 1000, True),
        ("mine.py", 50, False),
        ("other.py", 1000, False),
    ],
)
def test_a_script_contains_the_backends_own_files_unless_they_are_large(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, needed: str, most_bytes: int, *, contained: bool
) -> None:
    (tmp_path / "mine.py").write_text('SOURCE = "kernel.cpp"')
    (tmp_path / "kernel.cpp").write_text("// " + "long " * 20)
    (tmp_path / "other.py").touch()
    exporter = NeedsKernel(tmp_path / needed)
    monkeypatch.setattr(scripts, "Exporter", lambda *_, **__: exporter)
    monkeypatch.setattr(carried, "MOST_BYTES_UNASKED", most_bytes)
    caught = replace(CAUGHT, case=replace(decode(7), backend=f"{tmp_path / 'mine.py'}:MINE"))
    handed = scripts.script_of(caught, cast("Runner", Renewed()))
    assert (handed.script is not None, exporter.allowed == [tmp_path / needed]) == (contained, contained)
    assert ("is not part of attnfuzz" in handed.obstacle) != contained


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = SimpleNamespace(best_script=lambda: "the script")
    monkeypatch.setattr(scripts, "Exporter", lambda *_, **__: exporter)


class Proved:
    """Stands in for the run of a script, which ends like `result`; lists the time limits of all."""

    result: Proof | None
    limits: list[float]

    def __init__(self, _: str, seconds: float) -> None:
        self.limits.append(seconds)

    def proof(self, _: float) -> Proof | None:
        return self.result

    def close(self) -> None:
        pass


def ran(monkeypatch: pytest.MonkeyPatch, proof: Proof | None) -> list[float]:
    """Let each script end like this; return the time limits that scripts get."""
    limits: list[float] = []
    monkeypatch.setattr(scripts, "Proving", type("", (Proved,), {"result": proof, "limits": limits}))
    return limits


def made(caught: Caught, seconds: float) -> HandedOver | None:
    """The result of a script for which so much time is left, as far as it is known."""
    return scripts.hand_over(caught, cast("Runner", Renewed()), seconds).poll(0.0)


FLAKY = Recurrence(way=Rerun.ALONE, runs=100, failed=3)


@pytest.fixture
def untriaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "blame_of", lambda *_: None)


@pytest.mark.usefixtures("exported", "untriaged")
@pytest.mark.parametrize(
    ("caught", "code", "kept", "words"),
    [
        (CAUGHT, 1, True, ""),
        (CAUGHT, 0, False, "its calls found nothing wrong"),
        (CAUGHT, 2, False, "it could not run (exit code 2: ImportError: torch)"),
        (CAUGHT, None, True, "it was stopped after 40 s"),
        (replace(CAUGHT, recurrence=FLAKY), 0, True, "its calls found nothing wrong"),
    ],
)
def test_a_script_is_kept_if_it_shows_the_failure_or_may_do_so(
    monkeypatch: pytest.MonkeyPatch, caught: Caught, code: int | None, *, kept: bool, words: str
) -> None:
    limits = ran(
        monkeypatch, Proof(code, "the fault shows" if code == 1 else "ImportError: torch\nit could not run", 40.0)
    )
    handed = made(caught, 40.0)
    assert handed is not None
    assert (handed.fingerprint, handed.case) == (caught.fingerprint, caught.case)
    assert (handed.script is not None, handed.obstacle) == (kept, words)
    assert limits == [pytest.approx(40.0, abs=1.0)]


@pytest.mark.usefixtures("exported", "untriaged")
def test_a_script_that_runs_has_no_result_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ran(monkeypatch, None)
    handing = scripts.hand_over(CAUGHT, cast("Runner", Renewed()), 40.0)
    assert (handing.poll(0.0), handing.poll(0.0)) == (None, None)
    assert len(limits) == 1


@pytest.mark.usefixtures("exported", "untriaged")
def test_a_script_for_which_no_time_is_left_is_kept_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ran(monkeypatch, Proof(1, "the fault shows", 1.0))
    handed = made(CAUGHT, 1.0)
    assert handed is not None
    assert (handed.script, handed.obstacle) == ("the script", "it was not run: no time was left")
    assert not limits


@pytest.mark.usefixtures("exported")
def test_a_symptom_of_a_known_cause_is_not_triaged(monkeypatch: pytest.MonkeyPatch) -> None:
    ran(monkeypatch, Proof(1, "the fault shows", 1.0))
    monkeypatch.setattr(scripts, "blamed_for", lambda *_: Culprit(Blame.KERNEL, "It is the kernel.", ("a", "b", "c")))
    blames = [
        None if handed is None else handed.blame
        for handed in (made(replace(CAUGHT, cause="another"), 60.0), made(CAUGHT, 60.0), made(CAUGHT, 6.0))
    ]
    assert blames == [
        None,
        Blamed(fault=Blame.KERNEL, conclusion="It is the kernel.", sentences=("a", "b")),
        None,
    ], "6 s are left to the script"


def test_a_finding_whose_calls_cannot_be_traced_has_no_triage(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise HandlerError("Traceback")

    monkeypatch.setattr(scripts, "blamed_for", fail)
    runner = Renewed()
    assert scripts.blame_of(CAUGHT, cast("Runner", runner)) is None
    assert runner.times == 1
