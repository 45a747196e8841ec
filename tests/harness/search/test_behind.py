"""A new failure behind known ones, in a later step of the same case, is found."""

from collections.abc import Callable
from typing import Any

from fake_search import GEOMETRY, caught, decode, hunt, observed
from msgspec.structs import replace

from attnfuzz.harness.ledger.entry import Entry
from attnfuzz.harness.sandbox.case_runner import OneByOne
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import Caught, Lost
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.past import past_failures
from attnfuzz.reference.case import Case

KNOWN = observed()
KNOWN_AS = Fingerprint.of("fake", KNOWN)
PAST = past_failures([KNOWN_AS], "fake")
NEW = replace(observed(Kind.NOT_FINITE), step=1)
WITH_SINKS = replace(decode(9), geometry=replace(GEOMETRY, sinks=True))


class TwoSteps(OneByOne):
    """A judge of a second step that fails as `new`; the first one fails as is known where `known` says so."""

    def __init__(self, known: Callable[[Case], bool], new: Observation = NEW) -> None:
        self._known, self._new = known, new
        self.judged: list[Case] = []

    def verdict(self, case: Case) -> Verdict:
        """Judge without running anything."""
        self.judged.append(case)
        if not self._known(case):
            return Verdict(observations=(self._new,), rows=1)
        if PAST[0] not in case.past:
            return Verdict(observations=(KNOWN,), rows=1)
        return Verdict(observations=(self._new,), passed=(KNOWN,), rows=1)

    def renew(self) -> None:
        """Do nothing."""


def found_by(judge: TwoSteps, known: tuple[Fingerprint, ...] = (KNOWN_AS,), **task: Any) -> list[Caught]:
    return caught(hunt(judge, **{"examples": 20, "known": known, **task})[1])


def test_a_failure_behind_a_known_one_is_caught_in_a_case_that_goes_on() -> None:
    (found,) = found_by(TwoSteps(lambda _: True))
    assert found.fingerprint == Fingerprint.of("fake", NEW)
    assert found.case.past == PAST
    assert found.verdict.failures == (NEW,)


def test_a_case_that_fails_alike_without_the_known_one_does_not_go_on_after_it() -> None:
    (found,) = found_by(TwoSteps(lambda case: case.geometry == GEOMETRY and len(case.steps[0].requests) > 1))
    assert found.first.past in {(), PAST}
    assert found.case.past == ()


def test_a_case_names_the_failures_alone_that_it_went_on_after() -> None:
    lse = Fingerprint.of("fake", observed(Kind.LSE_MISMATCH, "lse"))
    (found,) = found_by(TwoSteps(lambda _: True), (KNOWN_AS, lse))
    assert found.first.past == found.case.past == PAST


def test_nothing_is_caught_behind_a_known_failure_that_a_case_does_not_go_on_after() -> None:
    assert found_by(TwoSteps(lambda _: True, KNOWN)) == []


def test_cases_go_on_after_no_failure_of_another_backend_or_of_the_worker() -> None:
    elsewhere, fault = replace(KNOWN_AS, backend="other"), replace(KNOWN_AS, kind=Kind.ILLEGAL_ACCESS)
    assert past_failures([elsewhere, fault, KNOWN_AS, KNOWN_AS], "fake") == PAST


def test_a_failure_behind_one_that_the_ledger_accepts_in_another_mode_is_caught_first() -> None:
    entry = Entry(backend="fake", kind=KNOWN.kind, reason="known in all modes")
    elsewhere = replace(KNOWN_AS, mode="target_verify")
    found, *_ = found_by(TwoSteps(lambda _: True), (elsewhere,), ledger=(entry,))
    assert found.fingerprint == Fingerprint.of("fake", NEW)


class BothPast(TwoSteps):
    """A judge of two steps that go on after their failures."""

    def verdict(self, case: Case) -> Verdict:
        """Judge without running anything."""
        verdict = super().verdict(case)
        both = past_failures([Fingerprint.of("fake", self._new)], "fake")[0] in case.past
        return Verdict(passed=(KNOWN, self._new), rows=1) if both and verdict.passed else verdict


def test_a_failure_behind_a_known_one_is_not_expected_of_a_case_that_ends_with_the_known_one() -> None:
    """The ledger accepts the second step's failure, which is known in another mode."""
    entry = Entry(backend="fake", kind=NEW.kind, reason="known in all modes")
    elsewhere = replace(Fingerprint.of("fake", NEW), mode="target_verify")
    _, sent = hunt(BothPast(lambda _: True), examples=5, known=(KNOWN_AS, elsewhere), ledger=(entry,))
    assert [each for each in sent if isinstance(each, Lost)] == []


def test_a_case_does_not_go_on_after_a_failure_that_no_known_cause_explains() -> None:
    """Both steps fail as is known, the second one of a case for another reason."""
    again = replace(observed(Kind.NOT_FINITE), step=1)
    causes = (
        KnownCause(name="first", case=decode(9), fingerprint=KNOWN_AS, needs=(), ablated=False),
        KnownCause(name="sinks", case=WITH_SINKS, fingerprint=Fingerprint.of("fake", again), needs=("sinks",)),
    )
    known = tuple(cause.fingerprint for cause in causes)

    (found,) = found_by(BothPast(lambda _: True, again), known, causes=causes, examples=5)
    assert found.beside
    assert found.fingerprint == Fingerprint.of("fake", again)
    assert found.case.past == PAST
