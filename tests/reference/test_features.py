"""The table of features: each row has all of its parts, and they agree."""

from typing import Any

import pytest
from small_cases import HEADS, step

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, KvView, Mode, QueryView
from attnfuzz.reference.features import TABLE
from attnfuzz.reference.features.row import FeatureRow, but, only, single

PLAIN = Case(backend="any", geometry=HEADS, steps=(step(Mode.DECODE, (1, 3)),))


@pytest.mark.parametrize("row", TABLE.rows, ids=lambda row: row.name)
def test_a_row_is_in_a_group_and_names_fields_of_cases(row: FeatureRow[Any]) -> None:
    assert row.group
    for field in row.fields:
        part, *inner = field.split(".")
        assert part in Case.__struct_fields__
        if inner and (value := getattr(PLAIN, part)) is not None and part != "steps":
            assert hasattr(value, inner[0])


@pytest.mark.parametrize("row", TABLE.rows, ids=lambda row: row.name)
def test_values_that_no_case_of_a_backend_has_have_a_reason(row: FeatureRow[Any]) -> None:
    assert (row.supported is None) is (not row.lack)
    if row.supported is not None:
        assert set(row.supported(Capability())) <= set(row.axis.values)


@pytest.mark.parametrize("row", TABLE.rows, ids=lambda row: row.name)
def test_a_property_is_shown_by_a_value_or_by_a_function_of_the_case(row: FeatureRow[Any]) -> None:
    for each in row.removables:
        shown = frozenset(row.axis.features)
        assert each.shown_by & shown or each.present(PLAIN) in (True, False)
        assert each.shown_by - shown <= frozenset().union(*TABLE.axes.values())


def test_no_word_means_two_features() -> None:
    words = [*TABLE.features, *TABLE.groups, *(feature for axis in TABLE.axes.values() for feature in axis)]
    assert len(words) == len({*words} | {name for name in TABLE.groups if name in TABLE.features})


def test_a_plain_case_has_only_features_without_a_cause() -> None:
    clues = {each.name for each in TABLE.features_in(PLAIN) if each.clue and not each.memory}
    assert clues <= {"16 bits", "a head dim that is no multiple of 16"}


def test_values_that_an_axis_lacks_cannot_be_named() -> None:
    axis: Any = single("colour", ("red", "blue"), lambda _: "red")
    assert but("red")(axis) == {"colour=blue"}
    with pytest.raises(ValueError, match="no such features: colour=green"):
        only("green")(axis)


def test_a_plain_capability_omits_features_that_are_off_by_default() -> None:
    assert set(TABLE.optional(Capability(), asked=False)) == {
        *("pools beyond 2^31", "windows", "sinks", "soft caps", "masks other than causal", "fp8 caches"),
        "attention within chunks",
        *("scales of K and V", "padding", "graphs", "other head dims of V", "strided queries", "strided caches"),
        *("other forms of arguments", "earlier uses", "factors of 0 and below"),
    }


def test_features_of_a_capability_are_drawn() -> None:
    can = Capability(
        pool_holes=True,
        windows=True,
        sinks=True,
        fp8_kv=True,
        kv_scales=True,
        padding=True,
        query_views=tuple(QueryView),
        kv_views=tuple(KvView),
    )
    asked = {"pools beyond 2^31", "windows", "sinks", "fp8 caches", "scales of K and V", "padding"}
    assert {*asked, "strided queries", "strided caches"} <= {*TABLE.optional(can, asked=True)}
    assert asked.isdisjoint(TABLE.optional(can, asked=False))


def test_a_writer_has_no_features_of_attention() -> None:
    left_out = TABLE.optional(Capability(writes=True, empty_kv=False, kv_shorter_than_q=False), asked=False)
    assert {"windows", "sinks", "soft caps", "factors of 0 and below"}.isdisjoint(left_out)
