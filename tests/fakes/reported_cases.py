"""Steps in which a reported bug of the TRT-LLM planners shows, for backends of any geometry."""

from small_cases import step

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.reference.case import Case, Launch, Mode, Step

PADDED_AFTER_PLANNING = (step(Mode.DRAFT_EXTEND_V2, *((4, 6 + slot) for slot in range(10)), stride=4, rows=12),)
"""Ten requests of a draft extend, padded to twelve (SGLang PR #21649 and #24566)."""

ACCEPTED_LESS = (
    step(Mode.DRAFT_EXTEND, stride=4, rows=2, launch=Launch.CAPTURE),
    step(Mode.DRAFT_EXTEND, (2, 9), (1, 14), stride=4, rows=2, launch=Launch.REPLAY),
)
"""A replay in which fewer tokens were accepted than captured (SGLang PR #21987)."""

CHUNK_WITHOUT_KEYS = (step(Mode.CHUNKED_PREFILL, (2, 5), (3, 12)),)
"""Prefixes of which one has ended when the other's second chunk begins (SGLang PR #22688)."""


def over(backend: str, *steps: Step) -> Case:
    """A case over the simplest geometry that a backend has modules for, with chunks of four tokens."""
    geometry = resolve(backend).capability.buckets[0].simplest
    return Case(backend=backend, geometry=geometry, steps=steps, chunk_capacity=8)


def kinds(verdict: Verdict) -> set[Kind]:
    """Which failures there are."""
    assert verdict.unsupported is None
    return {observation.kind for observation in verdict.failures}
