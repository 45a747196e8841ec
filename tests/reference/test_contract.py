"""A contract says under which relations bits stay the same, and is not permissive without a source."""

import pytest

from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.relation import Relation


def test_by_default_bits_depend_on_the_batch_but_not_on_page_ids() -> None:
    kept = {relation for relation in Relation if Contract().keeps_bits(relation)}
    assert kept == {Relation.SAME_CALL, Relation.PAGES_RELABELLED}


def test_the_strict_contract_leaves_only_the_order_of_sums_open() -> None:
    strict = Contract(lse=LseBase.TWO).strict()
    assert strict.lse is LseBase.TWO
    open_ = {relation for relation in Relation if not strict.keeps_bits(relation)}
    assert open_ == {Relation.CHUNKS_CHANGED, Relation.SPLITS_CHANGED}
    assert Contract(bitwise=frozenset(Relation) - {Relation.SAME_CALL}).strict().keeps_bits(Relation.SPLITS_CHANGED)


def test_a_kernel_that_differs_from_call_to_call_keeps_no_bits() -> None:
    random = Contract(deterministic=False, sources={"deterministic": "its docstring"})
    assert not any(random.keeps_bits(relation) for relation in Relation)


@pytest.mark.parametrize(
    ("bitwise", "words"),
    [
        (frozenset(), "bitwise is permissive: name its source"),
        (frozenset({Relation.SAME_CALL, Relation.PAGES_RELABELLED}), "use deterministic for it"),
    ],
)
def test_bits_are_promised_or_not_with_a_reason(bitwise: frozenset[Relation], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Contract(bitwise=bitwise)


def test_bits_that_depend_on_page_ids_need_a_source() -> None:
    assert not Contract(bitwise=frozenset(), sources={"bitwise": "a header"}).keeps_bits(Relation.PAGES_RELABELLED)
