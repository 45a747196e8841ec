"""Answers of commands on servers, as `--json` writes them."""

import msgspec

from attnfuzz.harness.cli.answers import FindingInCampaign


class ServerFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of failures of a server: its state, or "known"; the features that it needs, and its number of requests.

    `symptoms` counts the failures that it explains, by kind and place.
    """

    name: str
    state: str
    known: str | None
    kind: str
    message: str
    needs: tuple[str, ...]
    symptoms: dict[str, int]
    requests: int | None
    path: str


class ServeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign against a server. `busy` is the share of the time with a running request.

    `floor` is the difference of log-probabilities that was allowed, null if the server was never asked. `ended` is the
    reason why the campaign ended before its time, or empty.
    """

    campaign: str
    result: str
    clean: bool
    interrupted: bool
    ended: str
    server: str | None
    floor: float | None
    seed: int | None
    seconds: float
    traces: int
    requests: int
    tokens: int
    busy: float
    restarts: int
    findings: tuple[ServerFinding, ...]
    unconfirmed: tuple[str, ...]
    reports: tuple[str, ...]


class ServerFindings(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of a home of attnfuzz serve."""

    findings: tuple[ServerFinding, ...]


class ShownServerFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of a server, its campaigns from first to last, and its report."""

    finding: ServerFinding
    campaigns: tuple[FindingInCampaign, ...]
    report: str | None
