"""Capabilities of backends in a campaign's log: reading a log must not load the backends."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from attnfuzz.harness.campaign.events import CampaignStarted, LoggedCapability
from attnfuzz.harness.family import families, family_with
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case_types import tag_of


def logged_capabilities(capabilities: Mapping[str, Any]) -> Iterator[tuple[str, LoggedCapability]]:
    """Yield capabilities of other families than attention as a log has them, those of a family's own type, by name."""
    for name, each in capabilities.items():
        family = family_with(each)
        if type(each) is family.capability_type and family.capability_type is not Capability:
            yield name, LoggedCapability(kind=tag_of(family.case_type), fields=msgspec.to_builtins(each))


def capability_of(started: CampaignStarted | None, backend: str) -> Any | None:
    """Return the capability of a backend when the campaign began, or None if its log has none that is known here."""
    if started is None:
        return None
    if (attention := started.capabilities.get(backend)) is not None:
        return attention
    other = started.other_capabilities.get(backend)
    return None if other is None else _restored(other)


def _restored(other: LoggedCapability) -> Any | None:
    for family in families():
        kind = family.capability_type
        if kind in (None, Capability) or tag_of(family.case_type) != other.kind:
            continue
        try:
            return msgspec.convert(other.fields, kind)
        except (msgspec.ValidationError, TypeError, ValueError):
            return None
    return None
