"""A failure that few values show is searched for with values that show it more often."""

from explained_causes import one_request
from msgspec.structs import replace

from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.search.variants import steadier
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case, Mode, ValueFamily

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


def test_values_of_which_each_seed_fails_take_the_place_of_those_of_which_few_do() -> None:
    case = steadied(lucky(ValueFamily.DISCRETE), always_wrong_with=(ValueFamily.PEAKED, ValueFamily.PROBE))
    assert case == lucky(ValueFamily.PEAKED)


def test_values_of_which_each_seed_fails_stay() -> None:
    case = steadied(lucky(ValueFamily.PROBE), always_wrong_with=(ValueFamily.NORMAL, ValueFamily.PROBE))
    assert case == lucky(ValueFamily.PROBE)


def test_values_stay_if_none_shows_the_failure_more_often() -> None:
    assert steadied(lucky(ValueFamily.DISCRETE), always_wrong_with=()) == lucky(ValueFamily.DISCRETE)
