"""Restricting a backend to calls that its API mentions: it promises their outcome, or refuses them."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from attnfuzz.reference.arguments import ArgumentRule, ArgumentStanding
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.edges import EdgeRule


def promised_part(capability: Any) -> Any:
    """Return a capability without unsaid forms of arguments and edges, and without earlier uses of objects.

    No API states that earlier uses have no effect. Capabilities of other families are returned as they are.
    """
    if not isinstance(capability, Capability):
        return capability
    unsaid = set(_unsaid(capability))
    return replace(
        capability,
        arguments=tuple(rule for rule in capability.arguments if rule not in unsaid),
        edges=tuple(rule for rule in capability.edges if rule not in unsaid),
        earlier_uses=(),
    )


def unsaid_part(capability: Any) -> tuple[str, ...]:
    """Return the words for the forms, edges and earlier uses that `promised_part` leaves out."""
    if not isinstance(capability, Capability):
        return ()
    rules = (rule.form if isinstance(rule, ArgumentRule) else rule.edge for rule in _unsaid(capability))
    return tuple(each.value for each in (*rules, *capability.earlier_uses))


def _unsaid(capability: Capability) -> Iterable[ArgumentRule | EdgeRule]:
    rules: tuple[ArgumentRule | EdgeRule, ...] = (*capability.arguments, *capability.edges)
    return (rule for rule in rules if rule.standing is ArgumentStanding.UNSAID)
