"""Homes that damage is done to, and the command line, run in this process."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign_events import filed, finished, started
from command_line import Attnfuzz, runs_commands
from fake_archive import FINGERPRINT, archive, found
from fake_search import decode
from harness_cases import decode_case
from msgspec.structs import replace

from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.log import EventLog
from attnfuzz.harness.corpus import Corpus, Why
from attnfuzz.harness.verdict.failures import Kind

MOST_SECONDS = 90


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A test that hangs fails: what opens a FIFO waits for ever."""

    def too_long(*_: object) -> None:
        # No Exception, which a command may take for what it reads.
        pytest.fail(f"it took more than {MOST_SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(MOST_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def attnfuzz(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Attnfuzz:
    """Runs `attnfuzz ARGUMENTS` in an empty folder, into a pipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    return runs_commands(monkeypatch, capsys)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A campaign that filed two findings, of "torch_sdpa", and a corpus of two cases."""
    home = Home(tmp_path / "out")
    case = replace(decode(5), backend="torch_sdpa")
    night = archive(home.path)
    for kind in (Kind.OUTPUT_MISMATCH, Kind.EMPTY_ROW):
        night.file(replace(found(kind=kind), case=case), replace(FINGERPRINT, backend="torch_sdpa", kind=kind))
    with EventLog(home.log("20260501-043000")) as log:
        for event in (started("torch_sdpa"), filed(case), finished()):
            log(event)
    corpus = Corpus(home.corpus)
    for lengths in (3, 9):
        corpus.keep(decode_case("torch_sdpa", lengths), why=Why.FAILURE)
    return home
