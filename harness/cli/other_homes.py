"""Homes of guests' campaigns, whose findings are no cases: `attnfuzz findings` and `report` show them too."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from attnfuzz.harness.campaign.home import LOG_NAME, Home
from attnfuzz.harness.cli.answers import FindingInCampaign
from attnfuzz.harness.cli.terminal import BadInput
from attnfuzz.harness.findings.sightings import Sighting
from attnfuzz.harness.findings.state import State
from attnfuzz.kernels.interface.guests import shipped


class OtherRecord(Protocol):
    """A finding on file, with the attributes of a `Record` that every finding has, and its title."""

    @property
    def name(self) -> str:
        """Its folder's name."""

    @property
    def path(self) -> Path:
        """Its folder."""

    @property
    def cause(self) -> str:
        """The finding that represents its cause, "" if it does so itself."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The features that it needs."""

    @property
    def state(self) -> State:
        """Its state."""

    @property
    def sightings(self) -> tuple[Sighting, ...]:
        """The campaigns that ran it."""

    @property
    def last_seen(self) -> Sighting:
        """The last campaign that saw it fail."""

    @property
    def headline(self) -> str:
        """Its title without features."""


class OtherHome(Protocol):
    """A kind of campaign: its `command`, and the `script` in the folder of a finding."""

    command: str
    script: str

    def is_log(self, path: Path) -> bool:
        """Return whether a file is the log of such a campaign."""

    def read_records(self, findings: Path) -> tuple[Sequence[OtherRecord], list[str]]:
        """Read all findings. Returns them, and a line for each folder that holds none."""

    def answer_list(self, records: Sequence[OtherRecord]) -> None:
        """Answer `findings list --json`."""

    def answer_one(self, record: OtherRecord, campaigns: tuple[FindingInCampaign, ...], report: str | None) -> None:
        """Answer `findings show --json`."""

    def report(self, log: Path, *, html: Path | None, junit: Path | None) -> None:
        """Write the reports of a campaign; by default all, next to its log."""


def kind_of_log(log: Path) -> OtherHome | None:
    """Return the kind of campaign that wrote a log, or None for `attnfuzz fuzz` and for no log."""
    kinds: Sequence[OtherHome] = tuple(shipped("attnfuzz.homes").values())
    return next((kind for kind in kinds if kind.is_log(log)), None)


def kind_of_home(path: Path) -> OtherHome | None:
    """Return the kind of the last campaign of a home, or of the campaign with this folder or log."""
    home = Home(path)
    return kind_of_log(home.log(ids[-1]) if (ids := home.ids()) else path / LOG_NAME if path.is_dir() else path)


def refuse_other_home(path: Path, instead: str) -> None:
    """Raise BadInput for a home of another kind of campaign; `instead` is the remedy."""
    if (kind := kind_of_home(path)) is not None:
        raise BadInput(f"{path} is a home of {kind.command}, whose campaigns have traces instead of cases: {instead}")
