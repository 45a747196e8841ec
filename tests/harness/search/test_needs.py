"""The features that a failure needs are found after it was made small, within its budget."""

from fake_causes import Fault, FaultyJudge, caught, featured, hunted, names_in

from attnfuzz.harness.reduce.ablation import FEATURES
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.search.needs import needs_of
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.verdict.fingerprint import Fingerprint

BOTH = featured(window=3, sinks=True)


def test_a_failure_needs_the_features_without_which_it_passes() -> None:
    (found,) = caught(hunted(FaultyJudge(Fault(needs=("sinks", "soft cap")))))
    assert found.needs == ("sinks", "soft cap")
    assert set(found.needs) <= names_in(found.case)


def test_a_failure_of_all_cases_needs_nothing() -> None:
    (found, *_) = caught(hunted(FaultyJudge(Fault())))
    assert found.needs == ()


def test_without_a_budget_no_feature_is_known_to_be_needed() -> None:
    judge = FaultyJudge(Fault(needs=("sinks",)))
    (found, *_) = caught(hunted(judge, shrink=ShrinkBudget(runs=0, seconds=0)))
    assert found.needs == ()
    assert found.case == found.first


def test_finding_out_what_is_needed_has_a_part_of_the_budget() -> None:
    judge = FaultyJudge(Fault(needs=("sinks",)))
    (found, *_) = caught(hunted(judge, shrink=ShrinkBudget(runs=20, seconds=60)))
    assert len(set(judge.judged)) < 60 + 20
    assert "sinks" in names_in(found.case)


def test_what_was_kept_while_the_case_was_made_small_is_needed_when_the_budget_is_spent() -> None:
    judge = FaultyJudge(Fault(needs=("sinks", "window")))
    pinned = Pinned(
        Fingerprint.of("fake", judge.verdict(BOTH).failures[0]),
        BOTH,
        judge.verdict(BOTH),
        run=judge.verdict,
        budget=ShrinkBudget(runs=0, seconds=0),
        aside=lambda _case, _verdict: None,
    )
    assert needs_of(pinned, BOTH, lambda _: True) == ()
    assert needs_of(pinned, BOTH, lambda _: True, clues={FEATURES["sinks"]}) == ("sinks",)
