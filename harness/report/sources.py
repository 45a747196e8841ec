"""Where the campaign is that a user means: a home, one campaign's folder, or a log."""

from dataclasses import dataclass
from pathlib import Path

from attnfuzz.harness.campaign.home import LOG_NAME, Home
from attnfuzz.harness.campaign.log import LogError, read_log
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.findings.archive import read_records
from attnfuzz.harness.findings.state import State
from attnfuzz.reference.user_error import UserError


class NoCampaignError(UserError):
    """A path that no campaign can be read from; the message says why, and what to do."""


@dataclass(frozen=True)
class Source:
    """One campaign's log. `home` is where it lies, None for a log that was taken out of one."""

    log: Path
    home: Home | None

    @property
    def folder(self) -> Path:
        """The campaign's folder."""
        return self.log.parent

    def standing(self) -> Standing:
        """Where the campaign stands. Raises LogError or OSError."""
        return Standing.of(read_log(self.log))

    def earlier(self) -> Standing | None:
        """Where the campaign before this one stood, the last that can be read; None if there is none."""
        return None if self.home is None else earlier(self.home, self.folder.name)

    def not_run(self, standing: Standing) -> list[str]:
        """The findings on file that fail as far as is known, and that a campaign which stands so did not run."""
        if self.home is None:
            return []
        seen = {filed.name for filed in standing.filed} | {checked.name for checked in standing.checked}
        records, _ = read_records(self.home.findings)
        return [each.name for each in records if each.state is not State.FIXED and each.name not in seen]


def locate(path: Path, campaign: str | None = None) -> Source:
    """The campaign that `path` means: of a home, the one called `campaign`, or else the last.

    Raises:
        NoCampaignError: there is none.

    """
    if not path.exists():
        raise NoCampaignError(f"{path} does not exist: name the --out folder of a campaign, or a log of one")
    home = Home(path)
    if path.is_dir() and home.ids():
        return _of_home(home, campaign)
    if campaign is not None:
        raise NoCampaignError(f"{path} has no campaigns/: --campaign chooses from an --out folder")
    log = path / LOG_NAME if path.is_dir() else path
    if not log.is_file():
        raise NoCampaignError(f"{path} holds no campaign: name the --out folder of one, or a log ({LOG_NAME})")
    above = log.parent.parent
    inside = log.name == LOG_NAME and above == Home(above.parent).campaigns
    return Source(log, Home(above.parent) if inside else None)


def earlier(home: Home, campaign: str) -> Standing | None:
    """Where the campaign before `campaign` stood, the last that can be read; None if there is none."""
    for name in reversed([name for name in home.ids() if name < campaign]):
        try:
            return Standing.of(read_log(home.log(name)))
        except (LogError, OSError):
            # An old night that was damaged must not cost the report of this one.
            continue
    return None


def _of_home(home: Home, campaign: str | None) -> Source:
    ids = home.ids()
    if campaign is not None and campaign not in ids:
        raise NoCampaignError(f"{home.path} has no campaign {campaign!r}: the last ones are {', '.join(ids[-3:])}")
    return Source(home.log(campaign or ids[-1]), home)
