"""Running the command line in this process."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import Attnfuzz, runs_commands

from attnfuzz.harness.campaign.events import Event


@pytest.fixture
def attnfuzz(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Attnfuzz:
    """Runs `attnfuzz ARGUMENTS` in an empty folder, on a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return runs_commands(monkeypatch, capsys)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes `attnfuzz fuzz` search nothing, and tell the events that this is called with."""

    def tell(*events: Event) -> None:
        engine = SimpleNamespace(events=lambda: iter(events))
        monkeypatch.setattr("attnfuzz.harness.campaign.run.Campaign", lambda *_, **__: engine)
        monkeypatch.setattr("attnfuzz.harness.campaign.run.JobProcesses", lambda *_: nullcontext())

    return tell
