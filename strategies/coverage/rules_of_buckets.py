"""Features, and pairs of them, that do not occur with a backend because no modules are compiled for them."""

from collections.abc import Iterator, Mapping
from itertools import chain, product

from msgspec.structs import replace

from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.geometry import Geometry
from attnfuzz.strategies.coverage.axis import GEOMETRY_AXES
from attnfuzz.strategies.coverage.classes import BATCHES, DRAFTS, KEYS, QUERIES, Classes
from attnfuzz.strategies.coverage.features import axes
from attnfuzz.strategies.scope import MOST_ROUNDS, Extent, Scope, scope_of
from attnfuzz.strategies.supported import drafts

_AXES = (*(axis.name for axis in GEOMETRY_AXES), "window", "drafts", "mode", "batch", "longest q", "longest kv")
"""The axes decided by the buckets and by the sizes of cases over them."""

NO_MODULE = "the backend has no modules for this"
NONE_WITH_BOTH = "the backend has no modules for both, at a size that is drawn"

Together = Mapping[str, frozenset[str]]
"""The features that each feature occurs with, including itself."""


def together(can: Capability) -> Together:
    """Features on these axes that some case over a bucket of `can` may show at the same time."""
    found: dict[str, set[str]] = {feature: set() for axis in _AXES for feature in axes()[axis]}
    for shown in _alternatives(can):
        for feature in shown:
            found[feature] |= shown
    return {feature: frozenset(others) for feature, others in found.items()}


def _alternatives(can: Capability) -> Iterator[frozenset[str]]:
    """Sets of features: two features are in one set if cases over one bucket, heads, pages and extent can show both."""
    for bucket in can.buckets:
        modes = frozenset(f"mode={mode}" for mode in can.modes if not bucket.modes or mode in bucket.modes)
        strides = frozenset(f"drafts={DRAFTS.of(stride)}" for stride in drafts(bucket))
        for (q_heads, kv_heads), page_size in product(bucket.heads, bucket.page_sizes):
            geometry = replace(bucket.simplest, q_heads=q_heads, kv_heads=kv_heads, page_size=page_size)
            parts = frozenset(chain.from_iterable(map(_placed, _variants(geometry, bucket))))
            for extent in Extent:
                scope = scope_of(extent, geometry, can.device, writes=can.writes)
                yield parts.union(modes, strides, _reached(scope, bucket))


def _variants(geometry: Geometry, bucket: Bucket) -> Iterator[Geometry]:
    """The geometry with each of the other options of its bucket in turn."""
    for layout in bucket.layouts:
        yield replace(geometry, kv_layout=layout)
    for sinks in bucket.sinks:
        yield replace(geometry, sinks=sinks)
    for cap in bucket.soft_caps:
        yield replace(geometry, soft_cap=cap)


def _placed(geometry: Geometry) -> Iterator[str]:
    case = Case(backend="", geometry=geometry, steps=())
    for axis in GEOMETRY_AXES:
        yield from map(axis.feature, axis.place(case))


def _reached(scope: Scope, bucket: Bucket) -> Iterator[str]:
    """Features of size that cases of a scope can reach, and those of its windows."""
    queries = max(scope.q_len, *drafts(bucket))
    # A batch grows by its prompts and in each round.
    keys = max(scope.kv_len, scope.tallest) + (1 if scope.one_step else 1 + MOST_ROUNDS) * queries
    for axis, classes, largest in (
        ("batch", BATCHES, scope.requests + scope.crowd),
        ("longest q", QUERIES, queries),
        ("longest kv", KEYS, keys),
    ):
        yield from (f"{axis}={name}" for name in _up_to(classes, largest))
    for left in bucket.windows:
        if left < 0:
            yield "window=none"
        elif left == 0:
            yield "window=a query's own key"
        else:
            yield "window=longer than all keys"
            if keys > left + 1:
                yield "window=cuts keys off"


def _up_to(classes: Classes, largest: int) -> Iterator[str]:
    return (name for name in classes.names if classes.bounds(name)[0] <= largest)
