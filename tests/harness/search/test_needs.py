"""The features that a failure needs are found after it was made small, within its budget."""

from fake_causes import Fault, FaultyJudge, caught, hunted, names_in

from attnfuzz.harness.search.messages import ShrinkBudget


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
