"""Running the command line in this process."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnfuzz.harness.campaign.events import Event
from attnfuzz.harness.cli.main import main


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str


@pytest.fixture
def attnfuzz(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Ran]:
    """Runs `attnfuzz ARGUMENTS` in an empty folder, on a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr("sys.argv", ["attnfuzz", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        written = capsys.readouterr()
        return Ran(code=int(ended.value.code or 0), out=written.out, err=written.err)

    return run


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes `attnfuzz fuzz` search nothing, and tell the events that this is called with."""

    def tell(*events: Event) -> None:
        engine = SimpleNamespace(events=lambda: iter(events))
        monkeypatch.setattr("attnfuzz.harness.campaign.run.Campaign", lambda *_, **__: engine)
        monkeypatch.setattr("attnfuzz.harness.campaign.run.JobProcesses", lambda *_: nullcontext())

    return tell
