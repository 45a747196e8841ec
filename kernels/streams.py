"""Which stream of numbers a value is drawn from.

Every slot has streams of its own, so that what one request holds does not depend on which others there are, nor on
their order or lengths: batches can be permuted, extended and cut down around it.
"""

NOBODY = (1 << 32) - 1
"""In the place of a slot: what belongs to no request."""


def stream_of(part: int, slot: int = NOBODY) -> int:
    """The stream of a slot's values in one part of a case: a step's queries, or one of several sets of tokens."""
    return part << 32 | slot
