"""Ledgers of earlier versions, which name some features otherwise."""

import pytest
from fake_archive import FINGERPRINT
from fake_search import decode
from msgspec.structs import replace

from attnfuzz.harness.ledger.entry import Entry
from attnfuzz.harness.ledger.file import Ledger
from attnfuzz.harness.ledger.rewrite import rewritten
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference.case import Scales
from attnfuzz.reference.features import TABLE

OLD = """# "empty kv" stays here
[[known]]
backend = "torch_sdpa"
features = [
    "empty kv",  # NaN
    'kv < q',
    "sinks",
]
reason = "features = [\"tree\"]"

[[server]]
features = ["tree"]
"""

NEW = OLD.replace('    "empty kv"', '    "empty KV"').replace("'kv < q'", '"fewer keys than queries"')


def test_only_the_features_of_known_tables_are_rewritten() -> None:
    assert rewritten(OLD) == NEW
    assert rewritten(NEW) == NEW


@pytest.mark.parametrize("former", sorted(TABLE.former))
def test_a_former_word_is_replaced_by_one_that_reports_use(former: str) -> None:
    assert TABLE.former[former] in TABLE.words
    assert former not in TABLE.words


@pytest.mark.parametrize(
    ("former", "word"), [("scaled", "scales"), ("decode", "mode=decode"), ("empty kv", "empty KV")]
)
def test_a_former_word_has_the_meaning_of_its_successor(former: str, word: str) -> None:
    has, lacks = replace(decode(0), scales=Scales(k=2.0)), replace(decode(5), steps=())
    for each in (former, word):
        known = Ledger([Entry(backend="fake", kind=Kind.OUTPUT_MISMATCH, reason="", features=(each,))])
        assert known.reason(FINGERPRINT, has) is not None
        assert known.reason(FINGERPRINT, lacks) is None
