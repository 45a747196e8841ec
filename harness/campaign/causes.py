"""The causes of a campaign's findings. One cause may have several kinds of failure, modes, places and backends.

Two causes that may be one, though neither was seen to explain the other, are undecided: reports show them under one
heading, and they are not merged.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from attnfuzz.harness.backends.registry import builtin, fixed
from attnfuzz.harness.campaign.events import AnyFinding
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.search.known import clues_among
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.kernels.interface.backend import package_of

_EARLIEST_FIRST = (State.OPEN, State.RETURNED, State.NEW, State.FIXED)


@dataclass(frozen=True)
class Cause:
    """A cause and the findings that show it. The first represents it.

    Preferably that is an unknown and minimized one, and among these the one under which the others are filed.
    """

    findings: tuple[AnyFinding, ...]

    @property
    def name(self) -> str:
        """The name of the finding that represents it."""
        return self.findings[0].name

    @property
    def needs(self) -> tuple[str, ...]:
        """The features that its failures need."""
        return self.findings[0].needs

    @property
    def heading(self) -> tuple[str, ...]:
        """The heading that it shares with causes that are probably the same bug, or its name if it has none."""
        first = self.findings[0]
        return heading_of(first.case.backend, first.fingerprint, first.needs) if first.ablated else (first.name,)

    @property
    def known(self) -> str | None:
        """The ledger's reason, if the ledger has one for each of the findings."""
        reasons = [finding.known for finding in self.findings]
        return None if None in reasons else reasons[0]

    @property
    def state(self) -> State:
        """The first of open, returned, new and fixed among its findings, or among the unknown ones if there are any.

        A cause seen before is not new just because it occurs in another mode.
        """
        unknown = [finding for finding in self.findings if finding.known is None]
        return min((finding.state for finding in unknown or self.findings), key=_EARLIEST_FIRST.index)


UNDECIDED = "same needs, same kind, same library"
"""The properties of undecided causes."""


def heading_of(backend: str, fingerprint: Fingerprint, needs: Collection[str]) -> tuple[str, ...]:
    """Return a key that is equal for failures with the same needs and kind, in one library."""
    clues = sorted(each.name for each in clues_among(needs))
    return (_library(backend) or backend, fingerprint.family, *clues)


@cache
def _library(name: str) -> str:
    """Return the package with the kernels of a backend of this project, or "" for any other.

    The findings of a report may be foreign: to resolve the name of a file or a release would import it.
    """
    ours = builtin().get(fixed(name))
    return "" if ours is None else package_of(ours)


def causes_of(findings: Sequence[AnyFinding], merged: Mapping[str, str]) -> list[Cause]:
    """Group findings by their cause, ordered by the first of each. `merged` maps a cause to one that explains it."""
    groups: dict[str, list[AnyFinding]] = {}
    for finding in findings:
        groups.setdefault(root_of(finding.cause or finding.name, merged), []).append(finding)
    return [Cause(tuple(sorted(group, key=partial(_rank, name)))) for name, group in groups.items()]


def _rank(cause: str, finding: AnyFinding) -> tuple[bool, bool, bool]:
    """Return the sort key by which findings represent their cause, which has this name."""
    return finding.known is not None, not finding.ablated, finding.name != cause


def root_of(name: str, merged: Mapping[str, str]) -> str:
    """Return the cause that explains the cause `name`, or `name` itself if it was not merged."""
    seen = {name}
    while (above := merged.get(name)) is not None and above not in seen:
        seen.add(above)
        name = above
    return name


def renamed(merged: Mapping[str, str], name: str, new: str) -> dict[str, str]:
    """Return `merged` after the cause `name` got another name, under which it keeps the cause that explains it."""
    if name == new:
        return dict(merged)
    above = {new: merged[name]} if name in merged else {}
    return {**merged, **above, name: new}
