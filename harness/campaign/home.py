"""The home of campaigns: a folder kept from night to night.

campaigns/ID/events.ndjson      one campaign's log; report.html, junit.xml and summary.md beside it
findings/NAME/                  a finding, with its history
unconfirmed/NAME/               failures that did not come back
corpus/                         cases to run first
margins.json                    the largest margins of each backend and dtype
lock                            held while a campaign runs
"""

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from attnfuzz.harness.files.durable import DRAFT, make_folder, sync_folder
from attnfuzz.harness.files.ignored import make_ignored_folder
from attnfuzz.reference.user_error import UserError

LOG_NAME = "events.ndjson"
FINDINGS = "findings"
MARGINS = "margins.json"

_ID = re.compile(r"\d{8}-\d{6}(\.\d{1,9})?", re.ASCII)


class HomeError(UserError):
    """A folder can't be a campaign's home, or is in use. The message has the remedy."""


class Home:
    """The folder `path`, and its subfolders."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.campaigns = path / "campaigns"
        self.findings = path / FINDINGS
        self.unconfirmed = path / "unconfirmed"
        self.corpus = path / "corpus"
        self.margins = path / MARGINS

    def folder(self, campaign: str) -> Path:
        """Return the folder of one campaign."""
        return self.campaigns / campaign

    def log(self, campaign: str) -> Path:
        """Return the event log of one campaign."""
        return self.folder(campaign) / LOG_NAME

    def ids(self) -> list[str]:
        """Return the campaigns that have a log, in the order in which they began.

        One that was killed before its first event has an empty log, and never began.
        """
        logs = (path for path in self.campaigns.glob(f"*/{LOG_NAME}") if not path.parent.is_symlink())
        return sorted(path.parent.name for path in logs if path.stat().st_size or not path.is_file())

    def new_id(self, now: float | None = None) -> str:
        """Create the folder of a new campaign, and return its name: the time in UTC, but sorted after all others.

        A clock that went backwards must not put a new campaign before an old one.
        """
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
        last = max((path.name for path in self.campaigns.glob("*") if _ID.fullmatch(path.name)), default="")
        name = stamp if stamp > last else _after(last)
        make_folder(self.campaigns)
        self.folder(name).mkdir()
        sync_folder(self.campaigns)
        return name

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the home for one campaign. Raises HomeError if another has it, OSError if it can't be created."""
        make_ignored_folder(self.path)
        # An untrusted home may contain links to anywhere, and the lock is written to.
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise HomeError(f"{self.path / 'lock'} is not a regular file: remove it, or give another --home")
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
                raise HomeError(
                    f"{self.path} is in use by another campaign (process {owner}): wait for it, or give another --home"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            self._tidy()
            yield
        finally:
            os.close(descriptor)

    def _tidy(self) -> None:
        """Remove files that killed processes left half written, except findings', which are the archive's."""
        for folder in (self.campaigns, self.corpus):
            for draft in folder.rglob(f"{DRAFT}*"):
                pid = draft.name.rpartition(".")[2]
                if pid.isdigit() and not Path("/proc", pid).exists():
                    draft.unlink(missing_ok=True)


def _after(name: str) -> str:
    """Return a name that sorts after `name`: the same with a number, or with the next one."""
    stem, dot, number = name.partition(".")
    return f"{stem}.{int(number) + 1 if dot else 2:03}"
