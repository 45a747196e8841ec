"""Running the command line in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

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
