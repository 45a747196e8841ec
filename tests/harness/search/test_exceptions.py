"""An exception from a line of the backend's own code has one cause, whatever the case."""

from typing import Any

from fake_causes import Fault, FaultyJudge, featured
from fake_search import caught, hunt, of_steps
from hypothesis import strategies as st

from attnfuzz.harness.search.compared import compared
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import Caught, CausePair, SameCauses
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.reference.case import Case, Mode

RAISED = (Kind.RAISED,)
SINKS = Fault(needs=("sinks",), modes=(Mode.EXTEND,), kinds=RAISED, raised_at="mine.py:7")
WINDOW = Fault(needs=("window",), modes=(Mode.DECODE,), kinds=RAISED, raised_at="mine.py:7")
OTHER = Fault(needs=("window",), modes=(Mode.DECODE,), kinds=RAISED, raised_at="mine.py:9")

FIRST, SECOND = featured(sinks=True), featured(mode=Mode.DECODE, window=3, soft_cap=30.0)


def found_in(case: Case, *faults: Fault, causes: tuple[KnownCause, ...] = ()) -> Caught:
    _, sent = hunt(FaultyJudge(*faults), st.just(case), examples=5, causes=causes)
    (found,) = caught(sent)
    return found


def cause_of(found: Caught, name: str) -> KnownCause:
    exceptions = frozenset({found.observation.exception})
    return KnownCause(
        name=name, case=found.case, fingerprint=found.fingerprint, needs=found.needs, exceptions=exceptions
    )


def test_an_exception_of_a_known_line_is_a_symptom_of_its_cause_in_every_mode_with_every_need() -> None:
    known = cause_of(found_in(FIRST, SINKS), "known")
    symptom = found_in(SECOND, WINDOW, causes=(known,))
    assert (symptom.cause, symptom.needs) == ("known", ("window",))
    assert of_steps(symptom.case).geometry.soft_cap == 0
    assert found_in(SECOND, OTHER, causes=(known,)).cause == ""


def test_two_causes_that_one_line_raises_are_one() -> None:
    causes = [cause_of(found_in(FIRST, SINKS), "one"), cause_of(found_in(SECOND, WINDOW), "other")]
    pair = CausePair(cause=causes[0], other=causes[1])

    def never(*_: object) -> Any:
        raise AssertionError("nothing has to run")

    assert compared(pair, never, never, lambda _: True, ()) == SameCauses(name="other", cause="one")


def test_a_cause_has_the_exceptions_of_all_its_findings() -> None:
    known = cause_of(found_in(FIRST, SINKS), "known")
    other = found_in(SECOND, OTHER)
    assert known.also(cause_of(other, "other")).exceptions == {"IndexError at mine.py:7", "IndexError at mine.py:9"}


def test_shrinking_stays_with_the_exception_of_one_line() -> None:
    """A shorter case raises the same type at another line, before it gets there."""
    early = Fault(modes=(Mode.EXTEND,), kinds=RAISED, raised_at="mine.py:3")

    class Judge(FaultyJudge):
        def verdict(self, case: Case) -> Verdict:
            verdict = super().verdict(case)
            longest = max(case.slot_lengths().values())
            return verdict if longest > 20 else FaultyJudge(early).verdict(case)

    _, sent = hunt(Judge(SINKS), st.just(FIRST), examples=5)
    first = caught(sent)[0]
    assert first.observation.raised_at == "mine.py:7"
    assert max(of_steps(first.case).slot_lengths().values()) == 21
