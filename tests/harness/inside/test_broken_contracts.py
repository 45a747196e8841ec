"""What is said of a step in which a call broke its contract."""

from attnfuzz.harness.inside.execute import with_broken
from attnfuzz.harness.verdict.failures import Kind, Observation

WRONG = Observation(kind=Kind.OUTPUT_MISMATCH, place="out", message="a row is wrong", kernel="decode")
BROKEN = Observation(
    kind=Kind.CONTRACT_BROKEN, place="seq_lens", message="a call of decode breaks its contract: ...", kernel="decode"
)


def test_nothing_is_said_where_nothing_was_broken() -> None:
    assert with_broken([WRONG], []) == [WRONG]


def test_what_came_of_a_breach_stands_first_and_names_it() -> None:
    first, second = with_broken([WRONG], [BROKEN])
    assert first.kind is Kind.OUTPUT_MISMATCH
    assert first.message == "a row is wrong\nbefore that, a call of decode breaks its contract: ..."
    assert second is BROKEN


def test_a_breach_that_nothing_came_of_is_a_failure_by_itself_and_told_once() -> None:
    assert with_broken([], [BROKEN, BROKEN]) == [BROKEN]
