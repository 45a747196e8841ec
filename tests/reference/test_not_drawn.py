"""What is off by default is named, and what a capability asks for is not."""

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import KvView, QueryView
from attnfuzz.reference.not_drawn import not_drawn


def test_a_plain_capability_omits_features_that_are_off_by_default() -> None:
    assert not_drawn(Capability()) == [
        *("pools beyond 2^31", "windows", "sinks", "soft caps", "masks other than causal", "fp8 caches"),
        *("scales of K and V", "padding", "graphs", "other head dims of V", "strided queries", "strided caches"),
        *("other forms of arguments", "earlier uses", "factors of 0 and below"),
    ]


def test_features_of_a_capability_are_drawn() -> None:
    can = Capability(pool_holes=True, windows=True, sinks=True, fp8_kv=True, kv_scales=True, padding=True)
    assert not {"pools beyond 2^31", "windows", "sinks", "fp8 caches", "scales of K and V", "padding"} & {
        *not_drawn(can)
    }
    viewed = Capability(query_views=tuple(QueryView), kv_views=tuple(KvView))
    assert not {"strided queries", "strided caches"} & {*not_drawn(viewed)}


def test_a_writer_has_no_features_of_attention() -> None:
    left_out = not_drawn(Capability(writes=True, empty_kv=False, kv_shorter_than_q=False))
    assert not {"windows", "sinks", "soft caps", "factors of 0 and below"} & {*left_out}
