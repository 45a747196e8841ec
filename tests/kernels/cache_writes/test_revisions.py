"""Revisions of the native writers: each plans other slots in the steps that its report is about, and no others."""

import pytest
from small_cases import HEADS, run, step

from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.kernels.cache_writes.revisions import WRITER_REVISIONS
from attnfuzz.reference.case import Case, Mode, PaddedSlot, Step

REVISIONS = {writer.name: writer for writer in WRITER_REVISIONS}


def verdict_of(name: str, *steps: Step) -> Verdict:
    case = Case(backend=name, geometry=HEADS, steps=steps, padded_slot=PaddedSlot.NOWHERE)
    return run(case, REVISIONS[name])


@pytest.mark.parametrize(
    ("name", "wrong", "kind"),
    [
        ("native:reshape_and_cache@56324", step(Mode.EXTEND, (3, 5), rows=8), Kind.STRAY_WRITE),
        ("native:reshape_and_cache@55630-before", step(Mode.EXTEND, (2, 40)), Kind.UNWRITTEN),
    ],
)
def test_a_revision_writes_to_other_slots_in_prefills_alone(name: str, wrong: Step, kind: Kind) -> None:
    assert verdict_of(name, wrong).failures[0].kind is kind
    assert not verdict_of(name, step(Mode.EXTEND, (3, 3))).failures
    assert not verdict_of(name, step(Mode.DECODE, (1, 40), rows=2)).failures


def test_revisions_are_named_after_the_writer_that_they_revise() -> None:
    assert {name.partition("@")[0] for name in REVISIONS} == {
        *("native:store_cache", "native:reshape_and_cache", "native:set_mla")
    }
    assert len(REVISIONS) == len(WRITER_REVISIONS)
