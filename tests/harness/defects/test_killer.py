"""What found a defect out, for each kind of failure."""

import pytest
from fake_search import observed
from msgspec.structs import replace

from attnfuzz.harness.defects.search import killer
from attnfuzz.harness.verdict.failures import Kind

KILLERS = {
    Kind.ILLEGAL_ACCESS: "guards",
    Kind.MISALIGNED: "guards",
    Kind.CANARY_OVERWRITTEN: "guards",
    Kind.INPUT_MUTATED: "guards",
    Kind.RAISED: "exception",
    Kind.UNEXPECTED_REJECTION: "exception",
    Kind.HANG: "watchdog",
    Kind.WORKER_DIED: "worker",
    Kind.CONTRACT_BROKEN: "contract",
}


@pytest.mark.parametrize("kind", Kind)
def test_every_failure_has_a_killer(kind: Kind) -> None:
    seen = observed(kind)
    if kind in KILLERS:
        assert killer(seen) == KILLERS[kind]
    else:
        assert killer(replace(seen, tier="T2")) == "T2"
