"""Answers of commands on releases, as `--json` writes them."""

import msgspec


class BisectedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome with a version: "not run", or one of the endings of a run. `seen` is the line that it ended with."""

    version: str
    outcome: str
    seen: str


class Bisected(msgspec.Struct, frozen=True, kw_only=True):
    """The versions, the oldest first, and the conclusion in words."""

    package: str
    versions: tuple[BisectedVersion, ...]
    conclusion: str


class SweptRelease(msgspec.Struct, frozen=True, kw_only=True):
    """A release in a sweep: the cases that its search drew, null if it was not searched.

    `unable` has, by backend, the reasons why it could not be run.
    """

    release: str
    drawn: int | None
    unable: dict[str, str]


class SweptFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure in a sweep: its outcome by release, as far as it was run.

    `began` and `ended` are releases, or words: "-" if no release fails, "by" and the oldest release, "still there".
    `cases` are the files of the failing cases, by release.
    """

    name: str
    title: str
    backend: str
    outcomes: dict[str, str]
    began: str
    ended: str
    found_in: tuple[str, ...]
    cases: dict[str, str]


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """The releases of an engine, and the failures that were run in them."""

    engine: str
    interrupted: bool
    releases: tuple[SweptRelease, ...]
    failures: tuple[SweptFailure, ...]
