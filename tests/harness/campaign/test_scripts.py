"""Scripts that a job makes of what it caught."""

from typing import cast

import pytest
from fake_search import decode, observed

from attnfuzz.harness.campaign import scripts
from attnfuzz.harness.export import CannotExport
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.messages import Caught
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.workers.pool import HandlerError

CAUGHT = Caught(
    fingerprint=Fingerprint.of("fake", observed()),
    first=decode(7),
    case=decode(7),
    observation=observed(),
    verdict=Verdict(observations=(observed(),)),
)


class Renewed:
    """Stands in for a runner: counts how often a fresh worker is asked for."""

    def __init__(self) -> None:
        self.times = 0

    def renew(self) -> None:
        self.times += 1


@pytest.mark.parametrize(("error", "renewed"), [(CannotExport("no source"), 0), (HandlerError("Traceback"), 1)])
def test_a_finding_may_have_no_script(monkeypatch: pytest.MonkeyPatch, error: Exception, renewed: int) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(scripts, "Exporter", fail)
    runner = Renewed()
    assert scripts.script_of(CAUGHT, cast("Runner", runner)) is None
    assert runner.times == renewed
