"""Which failures count as the same."""

from fake_search import decode, observed
from msgspec.structs import replace

from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.fingerprint import FEATURES, Fingerprint, features, fine
from attnfuzz.reference.case import Guard
from attnfuzz.reference.relation import Relation


def test_the_coarse_fingerprint_tells_places_apart() -> None:
    assert Fingerprint.of("b", observed(place="key")) != Fingerprint.of("b", observed(place="value"))


def test_the_fine_fingerprint_is_about_features_and_not_about_numbers_or_places() -> None:
    assert fine(decode(5), observed()) == fine(decode(9), observed(place="key"))
    assert fine(decode(5), observed()) != fine(decode(5), observed(Kind.NOT_FINITE))
    assert fine(decode(5), observed()) != fine(decode(0), observed())
    assert fine(decode(5), observed()) == fine(replace(decode(5), guard=Guard.LEFT), observed())


def test_only_special_features_are_named() -> None:
    assert features(replace(decode(5), relation=Relation.SPLITS_CHANGED)) == ("decode", "splits changed")
    assert features(decode(5)) == ("decode",)
    assert features(decode(0, 5)) == ("decode", "several requests", "empty kv")


def test_a_last_page_is_full_if_its_pages_hold_several_tokens() -> None:
    case = decode(8, 5)
    pages = {size: replace(case, geometry=replace(case.geometry, page_size=size)) for size in (1, 4, 8, 16)}
    assert {size for size, each in pages.items() if "full last page" in features(each)} == {4, 8}
    assert len({fine(each, observed()) for each in pages.values()}) == 1


def test_features_have_an_order_that_does_not_depend_on_steps() -> None:
    (empty,), (several,) = decode(0).steps, decode(5, 6).steps
    one_way = features(replace(decode(5), steps=(empty, several)))
    assert one_way == features(replace(decode(5), steps=(several, empty)))
    assert one_way == ("decode", "several steps", "several requests", "empty kv")
    assert set(one_way) <= set(FEATURES)
