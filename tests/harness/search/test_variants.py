"""A search goes on with a case that fails without what the ledger accepts, or with values that show it more often."""

from typing import Any

import pytest
from explained_causes import one_request
from fake_search import (
    GEOMETRY,
    LONG,
    FakeJudge,
    caught,
    decode,
    fails_on_long,
    hunt,
    kv_lens,
    observed,
    of_steps,
)
from hypothesis import strategies as st
from msgspec.structs import replace

from attnfuzz.harness.ledger.entry import Entry
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import Caught, ShrinkBudget
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.search.variants import steadier
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case, Mode, ValueFamily

SEVERAL = Entry(backend="fake", kind=Kind.OUTPUT_MISMATCH, features=("several requests",), reason="one of several")


def found_by(judge: FakeJudge, *entries: Entry, **options: Any) -> list[Caught]:
    return caught(hunt(judge, ledger=entries, examples=50, **options)[1])


def known_cause(case: Case, *needs: str) -> dict[str, object]:
    fingerprint = Fingerprint.of("fake", observed())
    cause = KnownCause(name="known", case=case, fingerprint=fingerprint, needs=needs, ablated=False)
    return {"known": (fingerprint,), "causes": (cause,)}


def one_alone(lengths: list[int]) -> tuple[Observation, ...]:
    return fails_on_long(lengths) if len(lengths) == 1 else ()


def test_a_failure_that_the_ledger_does_not_accept_is_caught_beside_one_that_it_accepts() -> None:
    (found,) = found_by(FakeJudge(one_alone), SEVERAL, **known_cause(decode(LONG, LONG)))
    assert kv_lens(found.case) == [LONG]
    assert found.beside


@pytest.mark.parametrize("entries", [(), (SEVERAL,)])
def test_nothing_is_beside_a_cause_of_unknown_needs_that_the_ledger_does_not_accept(entries: tuple[Entry, ...]) -> None:
    assert found_by(FakeJudge(one_alone), *entries, **known_cause(decode(LONG))) == []


def test_a_failure_that_has_the_features_of_an_entry_by_chance_is_shrunk_without_them() -> None:
    with_sinks = replace(decode(LONG, 3), geometry=replace(GEOMETRY, sinks=True))
    entry = Entry(backend="fake", kind=Kind.OUTPUT_MISMATCH, features=("sinks",), reason="sinks are left out")
    _, sent = hunt(FakeJudge(fails_on_long), st.just(with_sinks), ledger=(entry,), examples=1)
    (found,) = caught(sent)
    assert not of_steps(found.case).geometry.sinks
    assert kv_lens(found.case) == [LONG]


LUCKY = 7


def steadied(case: Case, *, always_wrong_with: tuple[ValueFamily, ...]) -> Case:
    def run(each: Case) -> Verdict:
        wrong = each.seed == LUCKY or each.values in always_wrong_with
        failure = Observation(kind=Kind.OUTPUT_MISMATCH, place="out", message="wrong", margin=9.0)
        return Verdict(observations=(failure,) if wrong else ())

    first = run(case)
    fingerprint = Fingerprint.of(case.backend, first.failures[0])
    budget = ShrinkBudget(runs=200, seconds=60)
    pinned = Pinned(fingerprint, case, first, run=run, budget=budget, aside=lambda _case, _verdict: None)
    return steadier(pinned, lambda _: True)


def lucky(values: ValueFamily) -> Case:
    return replace(one_request(Mode.EXTEND, 2, 5), values=values, seed=LUCKY)


def test_values_that_fail_with_each_seed_replace_those_that_rarely_fail() -> None:
    case = steadied(lucky(ValueFamily.DISCRETE), always_wrong_with=(ValueFamily.PEAKED, ValueFamily.PROBE))
    assert case == lucky(ValueFamily.PEAKED)


def test_values_that_fail_with_each_seed_are_kept() -> None:
    case = steadied(lucky(ValueFamily.PROBE), always_wrong_with=(ValueFamily.NORMAL, ValueFamily.PROBE))
    assert case == lucky(ValueFamily.PROBE)


def test_values_stay_if_none_shows_the_failure_more_often() -> None:
    assert steadied(lucky(ValueFamily.DISCRETE), always_wrong_with=()) == lucky(ValueFamily.DISCRETE)
