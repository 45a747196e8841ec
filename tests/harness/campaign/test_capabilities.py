"""Capabilities of backends of all families in a campaign's log."""

import msgspec
import pytest
from campaign_events import started
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.campaign.capabilities import capability_of, logged_capabilities
from attnfuzz.harness.campaign.events import CampaignStarted, LoggedCapability
from attnfuzz.harness.report.coverage import Coverage
from attnfuzz.reference.case_types import decode_any

NAMES = ("native:gated_delta_rule", "native:sparse", "vllm_cpu:mamba_conv")


def logged(name: str) -> CampaignStarted:
    """The start of a campaign on a backend, as it is read from a log."""
    known = {name: resolve(name).capability}
    event = replace(started(name), capabilities={}, other_capabilities=dict(logged_capabilities(known)))
    return msgspec.json.decode(msgspec.json.encode(event), type=CampaignStarted, dec_hook=decode_any)


@pytest.mark.parametrize("name", NAMES)
def test_a_log_has_the_capabilities_of_all_families(name: str) -> None:
    assert capability_of(logged(name), name) == resolve(name).capability


@pytest.mark.parametrize("name", NAMES)
def test_reports_have_the_possible_pairs_of_all_families(name: str) -> None:
    coverage = Coverage.of(name, capability_of(logged(name), name), ())
    assert coverage.unreached
    assert coverage.impossible
    reached = Coverage.of(name, None, coverage.unreached)
    assert reached.unknown
    assert len(reached.reached) == len(coverage.unreached)


@pytest.mark.parametrize(
    "entry",
    [
        LoggedCapability(kind="no such family", fields={}),
        LoggedCapability(kind="states", fields={"op": "no such op"}),
        LoggedCapability(kind="sparse", fields={"chains": 3}),
    ],
    ids=lambda entry: entry.kind,
)
def test_a_capability_that_is_not_known_here_is_none(entry: LoggedCapability) -> None:
    assert capability_of(replace(started("mine"), other_capabilities={"mine": entry}), "mine") is None
