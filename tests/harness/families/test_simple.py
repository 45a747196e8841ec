"""Families of a few lines: what follows from the fields of their cases."""

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
import pytest
import torch
from hypothesis import given, settings

from attnfuzz.harness.backends.description import decoded, describe
from attnfuzz.harness.backends.load import BackendFileError
from attnfuzz.harness.families.simple import SimpleFamily
from attnfuzz.harness.family import families
from attnfuzz.kernels.interface.backend import Bench, Op
from attnfuzz.kernels.interface.compared import ComparedResult
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case_types import decode_any
from attnfuzz.reference.simple_case import SimpleCase as Base
from attnfuzz.reference.simple_case import choices
from attnfuzz.reference.validity import ImpossibleCase
from attnfuzz.strategies.lean import NO_LEAN


class Rounding(StrEnum):
    """The direction of a rounding."""

    DOWN = "down"
    UP = "up"


class ScaleCase(Base, frozen=True, kw_only=True, tag="scale"):
    """A multiplication of rows."""

    rows: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    rounding: Rounding = Rounding.UP
    in_place: bool = False
    bits: Literal[16, 8] = 16
    factor: float = 2.0


def step(case: ScaleCase, bench: Bench, op: Op) -> ComparedResult:
    raise NotImplementedError


FAMILY = SimpleFamily(ScaleCase, step, {"scale": Op("scale", torch.mul, frozenset({"out"}))})
(BACKEND,) = FAMILY.backends
LARGE = ScaleCase(backend="scale", rows=9, rounding=Rounding.DOWN, in_place=True, bits=8)


def test_fields_with_bounds_or_few_values_are_choices_and_defaults_are_plain() -> None:
    found = dict(choices(ScaleCase))
    assert {"guard", "outputs"} <= found.keys()
    assert (found["rows"], found["rounding"], found["in_place"], found["bits"]) == (
        range(1, 65), (Rounding.UP, Rounding.DOWN), (False, True), (16, 8)
    )  # fmt: skip
    assert "factor" not in found


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": 65}, "rows is 65: must be int <= 64"),
        ({"rows": "many"}, "rows is 'many': must be int, got str"),
        ({"bits": 4}, "bits is 4: "),
        ({"seed": -1}, "seed is -1: must be int >= 0"),
        ({"backend": ""}, "backend is ''"),
    ],
)
def test_a_field_beyond_its_bounds_is_refused(changes: dict[str, object], words: str) -> None:
    LARGE.validate()
    with pytest.raises(ImpossibleCase) as caught:
        LARGE.having(**changes).validate()
    assert words in str(caught.value)


@given(FAMILY.cases(BACKEND.capability, "scale", NO_LEAN))
@settings(max_examples=20, database=None, deadline=None)
def test_drawn_cases_are_valid_and_survive_json(case: ScaleCase) -> None:
    case.validate()
    assert decode_any(AnyCase, msgspec.to_builtins(case)) == case


def test_an_integer_shrinks_to_its_least_value_first_and_then_by_halves() -> None:
    smaller = [case.rows for edit in FAMILY.edits(None) for case in edit(LARGE) if case.rows != 9]
    assert smaller == [1, 5, 7, 8]
    plainer = {case.bits for edit in FAMILY.edits(None) for case in edit(LARGE)}
    assert plainer == {8, 16}
    assert next(FAMILY.plain(LARGE)) == ScaleCase(backend="scale")


def test_choices_are_features_that_can_be_taken_away() -> None:
    names = {each.name: each for each in FAMILY.table.features_in(LARGE)}
    assert names.keys() == {"rounding", "in place", "bits"}
    assert all(feature not in FAMILY.table.features_in(*feature.removal(LARGE)) for feature in names.values())
    assert FAMILY.modes == ("scale",)


def test_a_case_is_described_by_its_sizes_and_special_choices() -> None:
    assert FAMILY.describe(LARGE).endswith("for scale: rows 9, rounding down, in place, bits 8")


def test_plain_cases_have_one_choice_each() -> None:
    plain = list(FAMILY.plain_cases(BACKEND.capability, "mine"))
    assert [case.rows for case in plain] == [1, 5, 5, 5, 5, 5, 5]
    assert all(len(FAMILY.table.features_in(case)) <= 1 for case in plain)


def test_a_users_backend_of_another_family_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendFileError, match="make it a Capability"):
        describe("mine", BACKEND)
    monkeypatch.setattr("attnfuzz.harness.backends.description.families", lambda: (*families(), FAMILY))
    described = describe("mine", BACKEND)
    assert described.capability == BACKEND.capability
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(described), type=type(described))
    assert decoded(sent) == described
    assert described.noise == {}
