"""Failures that a ledger accepts hide no failure that it does not accept."""

import pytest
from fake_search import GEOMETRY, FakeJudge, decode, fake_cases, kv_lens, observed
from hypothesis import strategies as st
from msgspec.structs import replace

from attnfuzz.harness.search.accepted import Entry
from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import AnyMessage, Caught, Slice
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case

LONG = 100
SEVERAL = Entry(backend="fake", kind=Kind.OUTPUT_MISMATCH, features=("several requests",), reason="one of several")


def fails_on_long(lengths: list[int]) -> tuple[Observation, ...]:
    return (observed(),) if max(lengths) >= LONG else ()


def hunt(judge: FakeJudge, *entries: Entry, **options: object) -> list[Caught]:
    sent: list[AnyMessage] = []
    task = Slice(backend="fake", index=0, seed=1, examples=50, **options)  # type: ignore[arg-type]
    Hunt(task, judge, sent.append, ledger=entries).run(fake_cases())
    return [message for message in sent if isinstance(message, Caught)]


def known_cause(case: Case, *needs: str) -> dict[str, object]:
    fingerprint = Fingerprint.of("fake", observed())
    cause = KnownCause(name="known", case=case, fingerprint=fingerprint, needs=needs, ablated=False)
    return {"known": (fingerprint,), "causes": (cause,)}


def one_alone(lengths: list[int]) -> tuple[Observation, ...]:
    return fails_on_long(lengths) if len(lengths) == 1 else ()


def test_a_failure_that_the_ledger_does_not_accept_is_caught_beside_one_that_it_accepts() -> None:
    (found,) = hunt(FakeJudge(one_alone), SEVERAL, **known_cause(decode(LONG, LONG)))
    assert kv_lens(found.case) == [LONG]
    assert found.beside


@pytest.mark.parametrize("entries", [(), (SEVERAL,)])
def test_nothing_is_beside_a_cause_of_unknown_needs_that_the_ledger_does_not_accept(entries: tuple[Entry, ...]) -> None:
    assert hunt(FakeJudge(one_alone), *entries, **known_cause(decode(LONG))) == []


def test_a_failure_that_has_the_features_of_an_entry_by_chance_is_shrunk_without_them() -> None:
    with_sinks = replace(decode(LONG, 3), geometry=replace(GEOMETRY, sinks=True))
    entry = Entry(backend="fake", kind=Kind.OUTPUT_MISMATCH, features=("sinks",), reason="sinks are left out")
    sent: list[AnyMessage] = []
    task = Slice(backend="fake", index=0, seed=1, examples=1)
    Hunt(task, FakeJudge(fails_on_long), sent.append, ledger=(entry,)).run(st.just(with_sinks))
    (found,) = (message for message in sent if isinstance(message, Caught))
    assert not found.case.geometry.sinks
    assert kv_lens(found.case) == [LONG]
