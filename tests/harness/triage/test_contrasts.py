"""What is said of a failure that changes when the case is run in another way."""

from attnfuzz.harness.triage.repeats import Repeated
from attnfuzz.harness.triage.result import Variant, VariantOutcome
from attnfuzz.harness.triage.variants import contrasts
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict

PASSES = Verdict()


def fails(kind: Kind = Kind.OUTPUT_MISMATCH) -> Verdict:
    return Verdict(observations=(Observation(kind=kind, place="out", message="wrong"),))


def variant(what: str, value: str, verdict: Verdict) -> Variant:
    return Variant(what=what, value=value, outcome=VariantOutcome.of(verdict))


ALWAYS = Repeated(fresh=(fails(), fails()), used=(fails(), fails()))
NOW_AND_THEN = Repeated(fresh=(fails(), PASSES), used=(fails(), PASSES))


def test_each_variation_that_makes_a_difference_has_a_sentence() -> None:
    said = list(
        contrasts(
            ALWAYS,
            [
                variant("outputs", "stale", fails(Kind.UNWRITTEN)),
                variant("launch", "eager", PASSES),
                variant("steps", "step 3 alone", PASSES),
                variant("contents", "seed 1", PASSES),
                variant("contents", "seed 2", fails()),
                variant("backend", "trtllm_mha", PASSES),
            ],
        )
    )
    assert said == [
        "With outputs that begin stale it ends with Unwritten: the result depends on what out held before.",
        "Launched eagerly it passes: it depends on what a graph freezes or does not refresh.",
        "Step 3 alone passes: it depends on what ran before.",
        "With other contents it ends otherwise in 1 of 2: it depends on values.",
        "The whole case on trtllm_mha passes.",
    ]


def test_what_ends_alike_or_was_not_run_makes_none() -> None:
    unsupported = Variant(what="launch", value="eager", outcome=VariantOutcome(reason="no step is replayed"))
    assert list(contrasts(ALWAYS, [variant("guard", "left", fails()), unsupported])) == []


def test_a_race_makes_differences_by_chance_of_which_nothing_is_said() -> None:
    variants = [variant("guard", "left", PASSES), variant("backend", "trtllm_mha", PASSES)]
    assert list(contrasts(NOW_AND_THEN, variants)) == ["The whole case on trtllm_mha passes."]


def test_a_fault_on_one_side_only_is_an_overrun_of_that_side() -> None:
    runs = Repeated(fresh=(fails(Kind.ILLEGAL_ACCESS),) * 2, used=())
    (said,) = contrasts(runs, [variant("guard", "left", PASSES)])
    assert said == "With the guards on the left it passes: the stray access is seen on one side only."
