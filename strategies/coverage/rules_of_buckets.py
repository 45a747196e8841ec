"""Features, and pairs of them, that do not occur with a backend because no modules are compiled for them."""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain, product

from msgspec.structs import replace

from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode
from attnfuzz.reference.features import TABLE
from attnfuzz.reference.features.classes import BATCHES, DRAFTS, KEYS, QUERIES, Classes
from attnfuzz.reference.features.geometry import GEOMETRY
from attnfuzz.reference.features.serving import FEW_RANKS
from attnfuzz.reference.geometry import Geometry
from attnfuzz.strategies.coverage.rules import Together
from attnfuzz.strategies.scope import ANY_ROWS, MOST_ROUNDS, Extent, Scope, scope_of
from attnfuzz.strategies.supported import drafts

_AXES = (
    *(row.name for row in GEOMETRY),
    *("ranks", "window", "drafts", "mode", "padding", "batch", "longest q", "longest kv"),
)
"""The axes that are determined by the buckets and by the sizes of cases over them."""

_Shown = Mapping[str, frozenset[str]]
"""The features that each feature occurs with, including itself."""


def together(can: Capability) -> _Shown:
    """Return the features on these axes that a case over a bucket may show together; none if `can` has no buckets."""
    if not can.buckets:
        return {}
    found: dict[str, set[str]] = {feature: set() for axis in _AXES for feature in TABLE.axes[axis]}
    for parts, sizes in _alternatives(can):
        for feature in parts:
            found[feature].update(parts, sizes)
        for feature, others in sizes.items():
            found[feature].update(parts, others)
    return {feature: frozenset(others) for feature, others in found.items()}


def _alternatives(can: Capability) -> Iterator[tuple[frozenset[str], _Shown]]:
    """Yield features that cases over one bucket, heads, ranks, pages and extent can show together.

    Features of sizes are possible with all of the others, and with the sizes listed for them.
    """
    for bucket in can.buckets:
        modes = tuple(mode for mode in can.modes if not bucket.modes or mode in bucket.modes)
        for (q_heads, kv_heads), page_size in product(bucket.heads, bucket.page_sizes):
            geometry = replace(bucket.simplest, q_heads=q_heads, kv_heads=kv_heads, page_size=page_size)
            parts = frozenset(chain.from_iterable(map(_placed, _variants(geometry, bucket))))
            for ranks in can.shared_keys or (FEW_RANKS,):
                if can.shared_keys and q_heads % ranks:
                    continue
                number = "ranks=four" if ranks > FEW_RANKS else "ranks=up to two"
                rows = can.most_rows(q_heads, ranks)
                for extent in Extent:
                    scope = scope_of(extent, geometry, can.device, writes=can.writes).of_steps(rows)
                    yield parts | {number}, _sizes(scope, modes, drafts(bucket, scope.rows), bucket.windows)


def _variants(geometry: Geometry, bucket: Bucket) -> Iterator[Geometry]:
    """Yield the geometry with each of the other options of its bucket in turn."""
    for layout in bucket.layouts:
        yield replace(geometry, kv_layout=layout)
    for sinks in bucket.sinks:
        yield replace(geometry, sinks=sinks)
    for cap in bucket.soft_caps:
        yield replace(geometry, soft_cap=cap)


def _placed(geometry: Geometry) -> Iterator[str]:
    case = Case(backend="", geometry=geometry, steps=())
    for row in GEOMETRY:
        yield from map(row.axis.feature, row.axis.place(case))


@cache
def _sizes(scope: Scope, modes: tuple[Mode, ...], strides: tuple[int, ...], windows: tuple[int, ...]) -> _Shown:
    """Return the modes and sizes of steps of a scope, each with those that a step can show with it."""
    keys = frozenset(_of_keys(scope, max(scope.q_len, *strides), windows))
    found: dict[str, set[str]] = {}
    for shown in _of_any_steps(scope, modes, strides) if scope.rows == ANY_ROWS else _of_steps(scope, modes, strides):
        for feature in shown | keys:
            found.setdefault(feature, set()).update(shown, keys)
    return {feature: frozenset(others) for feature, others in found.items()}


def _of_any_steps(scope: Scope, modes: tuple[Mode, ...], strides: tuple[int, ...]) -> Iterator[frozenset[str]]:
    """Yield the modes and sizes of steps with any number of rows."""
    yield frozenset(
        (
            *(f"mode={mode}" for mode in modes),
            *(f"drafts={DRAFTS.of(stride)}" for stride in strides),
            *TABLE.axes["padding"],
            *_up_to("batch", BATCHES, scope.requests + scope.seeded_requests),
            *_up_to("longest q", QUERIES, max(scope.q_len, *strides)),
        )
    )


def _of_steps(scope: Scope, modes: tuple[Mode, ...], strides: tuple[int, ...]) -> Iterator[frozenset[str]]:
    """Yield the modes and sizes of steps with bounded rows, for each mode, number of drafts, and class of batches."""
    for mode, stride in product(modes, strides):
        tokens = mode.stride(stride) if mode.speculative else 1
        batch = scope.of_batch(tokens)
        longest = tokens if mode.speculative else scope.q_len
        for name in BATCHES.names:
            least = BATCHES.bounds(name)[0]
            if least <= batch.requests + batch.seeded_requests:
                # Requests of other modes may have fewer tokens.
                spare = scope.rows // tokens - least if mode.uniform else scope.rows
                yield frozenset(
                    (
                        f"mode={mode}",
                        f"drafts={DRAFTS.of(stride)}",
                        f"batch={name}",
                        "padding=none",
                        *(("padding=tokens", "padding=fewer requests than real") if spare else ()),
                        *(("padding=as many requests, or more",) if spare >= least else ()),
                        *_up_to("longest q", QUERIES, longest),
                    )
                )


def _of_keys(scope: Scope, queries: int, windows: tuple[int, ...]) -> Iterator[str]:
    """Yield the features of KV lengths that cases of a scope can reach, and those of its windows."""
    # A batch grows by its prompts and in each round.
    keys = max(scope.kv_len, scope.outlier_kv_len) + (1 if scope.one_step else 1 + MOST_ROUNDS) * queries
    yield from _up_to("longest kv", KEYS, keys)
    for left in windows:
        if left < 0:
            yield "window=none"
        elif left == 0:
            yield "window=a query's own key"
        else:
            yield "window=longer than all keys"
            if keys > left + 1:
                yield "window=cuts keys off"


def _up_to(axis: str, classes: Classes, largest: int) -> Iterator[str]:
    return (f"{axis}={name}" for name in classes.names if classes.bounds(name)[0] <= largest)


BUCKETS = Together(
    together, "the backend has no modules for this", "the backend has no modules for both, at a size that is drawn"
)
"""The alternatives of a backend with buckets."""
