"""Which failures count as the same."""

import pytest
from fake_search import decode, observed
from msgspec.structs import replace
from small_cases import step

from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.fingerprint import Fingerprint, fine
from attnfuzz.reference.arguments import ArgumentForm, EarlierUse
from attnfuzz.reference.case import Case, Guard, Launch, Magnitude, Mask, Mode, Pace, Pages, Scales, Views, Workspace
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.relation import Relation
from attnfuzz.reference.serving import Interleave, ServedQueries, Serving, SharedKeys

GEOMETRY = decode(5).geometry
CAPTURE = step(Mode.TARGET_VERIFY, stride=2, rows=2, launch=Launch.CAPTURE)
REPLAY = step(Mode.TARGET_VERIFY, (2, 9), (2, 5), stride=2, rows=2, launch=Launch.REPLAY)
RAGGED = step(Mode.EXTEND, (3, 9), (0, 4), (2, 1))


def test_the_coarse_fingerprint_tells_places_apart() -> None:
    assert Fingerprint.of("b", observed(place="key")) != Fingerprint.of("b", observed(place="value"))


def test_the_fine_fingerprint_is_about_features_and_not_about_numbers_or_places() -> None:
    assert fine(decode(5), observed()) == fine(decode(9), observed(place="key"))
    assert fine(decode(5), observed()) != fine(decode(5), observed(Kind.NOT_FINITE))
    assert fine(decode(5), observed()) != fine(decode(0), observed())
    assert fine(decode(5), observed()) == fine(replace(decode(5), guard=Guard.LEFT), observed())


def test_the_size_of_pages_does_not_change_a_fingerprint() -> None:
    case = decode(8, 5)
    pages = [replace(case, geometry=replace(case.geometry, page_size=size)) for size in (1, 4, 8, 16)]
    assert len({fine(each, observed()) for each in pages}) == 1


def test_the_fine_fingerprint_does_not_depend_on_the_order_of_steps() -> None:
    (empty,), (several,) = decode(0).steps, decode(5, 6).steps
    ordered = (replace(decode(5), steps=steps) for steps in ((empty, several), (several, empty)))
    assert len({fine(each, observed()) for each in ordered}) == 1


@pytest.mark.parametrize(
    ("case", "digits"),
    [
        (replace(decode(5), steps=(CAPTURE, REPLAY)), "0431b69364"),
        (replace(decode(5), steps=(RAGGED, step(Mode.DECODE, (1, 4), (1, 0)))), "876f127f83"),
        (
            replace(
                decode(5, 6),
                mask=Mask.EMPTY_ROWS,
                geometry=replace(GEOMETRY, window_left=3, sinks=True, soft_cap=5.0),
            ),
            "6ac5e8fe24",
        ),
        (
            replace(
                decode(5),
                scales=Scales(k=2.0),
                magnitude=Magnitude.LARGE,
                queries=ServedQueries(scale=2.0, kept=True),
                geometry=replace(GEOMETRY, kv_dtype=DType.FLOAT8_E4M3),
            ),
            "63ef050960",
        ),
        (
            replace(
                decode(5),
                pages=Pages(spare=0),
                views=Views(table_gap=1),
                workspace=Workspace.DIRTY,
                max_len_slack=7,
                pace=Pace.LATE,
            ),
            "add6c40da3",
        ),
        (
            replace(
                decode(5),
                arguments=(ArgumentForm.OUT_GAPS,),
                life=(EarlierUse.RESET,),
                relation=Relation.SAME_CALL,
                serving=Serving(asynchronous=True),
                shared_keys=SharedKeys(4, Interleave.PAGE, all_to_all=True),
            ),
            "995171bd8c",
        ),
    ],
)
def test_findings_keep_the_names_that_earlier_versions_gave_them(case: Case, digits: str) -> None:
    assert fine(case, observed()) == digits
