"""Findings of the fake backend, and one home's archive as successive campaigns open it."""

from collections.abc import Mapping
from pathlib import Path

from fake_search import decode, observed

from attnfuzz.harness.findings.archive import Archive
from attnfuzz.harness.findings.finding import Finding
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.fingerprint import Fingerprint

FINGERPRINT = Fingerprint.of("fake", observed())


def found(kv_len: int = 100, *, kind: Kind = Kind.OUTPUT_MISMATCH) -> Finding:
    """A finding that has the same name for all lengths above 0."""
    return Finding(case=decode(kv_len), first=decode(200, 3), observation=observed(kind), report="the report")


def archive(home: Path, campaign: str = "night 1", environment: Mapping[str, str] = {}, now: float = 0.0) -> Archive:
    """What `campaign` sees of the findings in `home`."""
    folders = home / "findings", home / "unconfirmed"
    return Archive(*folders, campaign=campaign, environment=environment, now=lambda: now)
