"""A campaign in a process of its own, as a user starts it, which tests follow by its log and kill."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from random_kills import running

from attnfuzz.harness.campaign.home import Home

MARK = "ATTNFUZZ_TEST_MARK"

PATIENCE = 300.0
"""Seconds: a machine that has much else to do takes long to import torch."""


@dataclass(frozen=True)
class CampaignProcess:
    """`process` runs `attnfuzz fuzz` with the home `home`."""

    process: subprocess.Popen[str]
    home: Home

    def log(self) -> str:
        """What the log of the home's last campaign holds so far; nothing if there is none yet."""
        names = self.home.ids()
        return self.home.log(names[-1]).read_text() if names else ""

    def wait_for(self, event: str, times: int = 1) -> None:
        """Return as soon as so many events of this name are in the log. AssertionError if the process ends first."""
        deadline = time.monotonic() + PATIENCE
        while self.log().count(f'"event":"{event}"') < times:
            assert self.process.poll() is None, "the campaign ended"
            assert time.monotonic() < deadline, "it takes too long"
            time.sleep(0.05)


def marked_with(mark: str) -> list[int]:
    """The processes that run with this mark in their environment, in whatever session."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return running(found)


@contextlib.contextmanager
def begin(folder: Path, *arguments: str, mark: str = "") -> Iterator[CampaignProcess]:
    """Start `attnfuzz fuzz` in `folder`, with the home `attnfuzz-out` there; kill it if it still runs at the end.

    All of its processes have `mark` in their environment.
    """
    command = [sys.executable, "-m", "attnfuzz.harness.cli.main", "fuzz", *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        text=True,
        start_new_session=True,
        env={**os.environ, MARK: mark},
    ) as process:
        try:
            yield CampaignProcess(process, Home(folder / "attnfuzz-out"))
        finally:
            process.kill()
