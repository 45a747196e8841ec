"""Edits among compiled geometries, which edits that halve numbers would leave or skip."""

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import TypeVar

from msgspec.structs import replace

from attnfuzz.harness.reduce.geometry import on_pages
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.case import Case
from attnfuzz.reference.edits.lengths import with_drafts

T = TypeVar("T")


def edits_among(buckets: tuple[Bucket, ...]) -> tuple[Callable[[Case], Iterator[Case]], ...]:
    """Return the edits for a backend with these buckets; none without buckets."""

    def simpler_bucket(case: Case) -> Iterator[Case]:
        """Yield the simplest geometry of each bucket up to its own, with compiled numbers of draft tokens."""
        for bucket in buckets:
            moved = replace(on_pages(case, bucket.simplest.page_size), geometry=bucket.simplest)
            yield moved
            yield from _fewer_drafts(moved, bucket)
            if bucket.covers(case.geometry):
                return

    def simpler_parts(case: Case) -> Iterator[Case]:
        """Yield simpler values of each part of its geometry in its own bucket."""
        for bucket in buckets:
            if bucket.covers(case.geometry):
                yield from _simpler_parts(case, bucket)

    return (simpler_bucket, simpler_parts) if buckets else ()


def _simpler_parts(case: Case, bucket: Bucket) -> Iterator[Case]:
    geometry = case.geometry
    for q_heads, kv_heads in _before((geometry.q_heads, geometry.kv_heads), bucket.heads):
        yield replace(case, geometry=replace(geometry, q_heads=q_heads, kv_heads=kv_heads))
    for page_size in _before(geometry.page_size, bucket.page_sizes):
        yield on_pages(case, page_size)
        yield replace(case, geometry=replace(geometry, page_size=page_size))
    for name, options in (
        ("kv_layout", bucket.layouts),
        ("window_left", bucket.windows),
        ("sinks", bucket.sinks),
        ("soft_cap", bucket.soft_caps),
    ):
        for value in _before(getattr(geometry, name), options):
            yield replace(case, geometry=replace(geometry, **{name: value}))
    yield from _fewer_drafts(case, bucket)


def _fewer_drafts(case: Case, bucket: Bucket) -> Iterator[Case]:
    """Yield `case` with each smaller compiled number of draft tokens."""
    most = max((step.drafts for step in case.steps), default=0)
    for stride in sorted(bucket.strides):
        if stride < most:
            yield from with_drafts(case, stride)


def _before(value: T, options: tuple[T, ...]) -> Iterator[T]:
    """Return the options before `value`, simplest first."""
    return takewhile(lambda option: option != value, options)
