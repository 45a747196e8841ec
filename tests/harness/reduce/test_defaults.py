"""The defaults of contents, memory and batch, together."""

from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.reduce.defaults import with_defaults
from attnfuzz.reference.case import Case, Guard, Mode, Outputs, PageOrder, Pages, Unused, ValueFamily

PLAIN = Case(backend="any", geometry=HEADS, steps=(step(Mode.EXTEND, (1, 5), (2, 9)),))


def test_all_are_tried_together_then_in_pairs_then_singly() -> None:
    case = replace(
        PLAIN,
        values=ValueFamily.CONSTANT,
        guard=Guard.LEFT,
        outputs=Outputs.STALE,
        pages=Pages(order=PageOrder.SHUFFLED, behind=Unused.NUMBERS, spare=3),
        steps=(step(Mode.EXTEND, (1, 5), (2, 9), rows=5),),
    )
    plain = list(with_defaults(case))
    assert plain[2] == PLAIN
    assert [len(each.steps[0].requests) for each in plain[:3]] == [1, 1, 2]
    default = [
        (each.values is PLAIN.values, each.guard is PLAIN.guard, each.pages.order is PageOrder.IDENTITY)
        for each in plain
        if len(each.steps[0].requests) == 2
    ]
    assert [sum(each) for each in default] == [3, 2, 2, 2, 1, 1, 1]
    assert all((each.outputs is PLAIN.outputs) is (each.pages.behind is Unused.NAN) for each in plain)
    assert all((each.pages.spare == 1) is (not each.steps[0].padded) for each in plain)


def test_a_plain_case_has_nothing_to_reset() -> None:
    alone = replace(PLAIN, steps=(step(Mode.EXTEND, (1, 5)),))
    assert not list(with_defaults(alone))
    assert list(with_defaults(replace(alone, values=ValueFamily.CONSTANT))) == [alone]
