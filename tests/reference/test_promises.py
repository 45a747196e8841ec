"""A capability without the calls that an API does not mention."""

from attnfuzz.reference.arguments import ArgumentForm, ArgumentRule, ArgumentStanding, EarlierUse
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.edges import Edge, EdgeRule
from attnfuzz.reference.promises import promised_part, unsaid_part

PROMISED = ArgumentRule(ArgumentForm.OUT_RETURNED, ArgumentStanding.PROMISED, "docstring")
REFUSED = EdgeRule(Edge.IDLE, ArgumentStanding.REFUSED, "checked")
CAN = Capability(
    sinks=True,
    arguments=(PROMISED, ArgumentRule(ArgumentForm.LENGTHS_GAPS)),
    edges=(EdgeRule(Edge.SOFTMAX_ZERO), REFUSED),
    earlier_uses=(EarlierUse.COPIED,),
)


def test_the_promised_part_has_promised_and_refused_calls_alone() -> None:
    part = promised_part(CAN)
    assert (part.arguments, part.edges, part.earlier_uses, part.sinks) == ((PROMISED,), (REFUSED,), (), True)
    assert promised_part(part) == part


def test_calls_left_out_are_named() -> None:
    assert unsaid_part(CAN) == ("lengths with gaps", "a softmax scale of 0", "copied")
    assert unsaid_part(promised_part(CAN)) == ()


def test_capabilities_of_other_families_are_unchanged() -> None:
    other = object()
    assert promised_part(other) is other
    assert unsaid_part(other) == ()
