"""What changed between two campaigns."""

from campaign_events import checked, filed, finished, started, without_sinks
from fake_search import decode
from msgspec.structs import replace

from attnfuzz.harness.campaign.events import CoverageGrew, Event, Progress
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.report.compare import Comparison, compare
from attnfuzz.harness.report.markdown import render_comparison
from attnfuzz.harness.search.messages import Tally

MHA = "trtllm_mha"
BEFORE = "trtllm_mha@21649-before"
ONE, SEVERAL, EMPTY = (replace(decode(*lengths), backend=MHA) for lengths in ((5,), (5, 6), (0,)))


def night(*events: Event, campaign: str = "b", backends: tuple[str, ...] = (MHA,), **environment: str) -> Standing:
    return Standing.of([started(*backends, campaign=campaign, **environment), *events, finished()])


def names(comparison: Comparison) -> dict[str, list[str]]:
    kinds = ("appeared", "still", "fixed", "unseen")
    return {kind: [each.name for each in getattr(comparison, kind)] for kind in kinds}


def test_findings_appear_stay_are_fixed_or_are_not_seen_again() -> None:
    old = night(filed(ONE, "stays"), filed(SEVERAL, "is-fixed"), filed(EMPTY, "vanishes"))
    new = night(
        checked(ONE, State.OPEN, "stays"),
        checked(SEVERAL, State.FIXED, "is-fixed"),
        filed(replace(decode(0, 7), backend=MHA), "appears"),
    )
    assert names(compare(old, new)) == {
        "appeared": ["appears"],
        "still": ["stays"],
        "fixed": ["is-fixed"],
        "unseen": ["vanishes"],
    }


def test_causes_are_compared_and_not_their_symptoms() -> None:
    old = night(*without_sinks(ONE), filed(EMPTY, "gone", cause="sinks"))
    new = night(*without_sinks(ONE, SEVERAL))
    comparison = compare(old, new)
    assert names(comparison) == {"appeared": [], "still": ["sinks"], "fixed": [], "unseen": []}
    assert comparison.grown == {"sinks": 2}
    assert (
        "  - computes a wrong output with sinks (trtllm\\_mha, 2 modes) (`sinks`): 2 failures not seen before\n"
        in render_comparison(comparison)
    )
    assert names(compare(night(), new))["appeared"] == ["sinks"]
    assert names(compare(new, night()))["unseen"] == ["sinks"]


def test_a_cause_is_fixed_if_all_of_its_failures_were_run_again_and_pass() -> None:
    old = night(filed(ONE, "one"), filed(SEVERAL, "two", cause="one"))
    one, two = checked(ONE, State.FIXED, "one"), checked(SEVERAL, State.FIXED, "two", cause="one")
    assert names(compare(old, night(one)))["unseen"] == ["one"]
    assert names(compare(old, night(one, two)))["fixed"] == ["one"]


def test_two_versions_of_a_backend_are_compared_with_each_other() -> None:
    old = night(filed(replace(ONE, backend=BEFORE), "old"), filed(replace(EMPTY, backend=BEFORE)), backends=(BEFORE,))
    new = night(filed(ONE, "new"))
    comparison = compare(old, new)
    assert [change.name for change in comparison.backends] == [f"{BEFORE} → {MHA}"]
    assert names(comparison) == {"appeared": [], "still": ["new"], "fixed": [], "unseen": ["a-finding"]}


def test_a_backend_that_one_of_them_lacks_is_left_out_and_named() -> None:
    old = night(filed(replace(ONE, backend="torch_sdpa")), campaign="a", backends=(MHA, "torch_sdpa"))
    comparison = compare(old, night())
    assert [change.name for change in comparison.backends] == [MHA]
    assert comparison.unseen == ()
    assert comparison.caveats == ("only a searched torch_sdpa: left out, with 1 finding",)
    assert comparison.nothing == "No findings in the backends that both searched."


def test_margins_have_a_ratio_and_tiers_may_appear_or_vanish() -> None:
    old = night(Progress(at=1, backend=MHA, tally=Tally(searched=1, cases=1, deaths=0, margins={"T1": 0.2, "T2": 0.5})))
    new = night(Progress(at=1, backend=MHA, tally=Tally(searched=1, cases=1, deaths=0, margins={"T1": 0.3, "T3": 0.4})))
    (change,) = compare(old, new).backends
    assert [(each.tier, each.before, each.after) for each in change.margins] == [
        ("T1", 0.2, 0.3),
        ("T2", 0.5, None),
        ("T3", None, 0.4),
    ]
    assert change.margins[0].ratio == 0.3 / 0.2
    assert change.margins[1].ratio is None


def test_coverage_gained_and_lost_is_counted_by_axes() -> None:
    shared = ("launch=eager", "mode=decode")
    old = night(CoverageGrew(at=1, backend=MHA, searched=1, pairs=(shared, ("mode=decode", "values=a"))))
    new = night(
        CoverageGrew(
            at=1,
            backend=MHA,
            searched=1,
            pairs=(
                shared,
                ("launch=replay", "mode=decode"),
                ("mode=extend", "pages=b"),
                ("mode=extend", "pages=a"),
            ),
        )
    )
    (change,) = compare(old, new).backends
    assert list(change.gained.items()) == [("mode x pages", 2), ("launch x mode", 1)]
    assert list(change.lost.items()) == [("mode x values", 1)]


def test_time_per_case_and_throughput_are_compared() -> None:
    old = night(
        Progress(at=1, backend=MHA, tally=Tally(searched=1, cases=100, deaths=0, phases={"judge": 1.0, "kernels": 1.0}))
    )
    new = night(Progress(at=1, backend=MHA, tally=Tally(searched=1, cases=3600, deaths=4)))
    comparison = compare(old, new)
    assert comparison.backends[0].milliseconds == (20.0, None)
    assert comparison.rates == (100 / 3600, 1.0)


def test_incomparable_settings_are_listed_as_caveats() -> None:
    old = Standing.of([started(MHA, campaign="a")])
    event = replace(started(MHA, campaign="b"), contract="strict", jobs=8, seconds=None, examples=50)
    new = Standing.of([event, finished(interrupted=True)])
    caveats = compare(old, new).caveats
    assert caveats[:2] == tuple(f"{name} did not come to its end: missing findings may exist" for name in "ab")
    assert caveats[2] == "contract was declared and is strict: findings and margins are not comparable"
    assert [caveat.split()[0] for caveat in caveats[3:]] == ["budget", "jobs"]
    assert not compare(night(), night()).caveats


def test_the_environment_lists_only_changed_values() -> None:
    comparison = compare(night(torch="2.8", cpu="one"), night(torch="2.9", cpu="one", gpu="B200"))
    assert [(each.name, each.before, each.after) for each in comparison.environment] == [
        ("torch", "2.8", "2.9"),
        ("gpu", "", "B200"),
    ]


def test_a_comparison_is_markdown() -> None:
    text = render_comparison(compare(night(filed(ONE), campaign="a", torch="1"), night(campaign="b", torch="2")))
    assert text.startswith("# attnfuzz: a → b\n")
    assert "- Not seen again: 1\n  - computes a wrong output (trtllm\\_mha, decode) (`a-finding`)\n" in text
    assert "- torch: `1` → `2`" in text
    assert "| `trtllm_mha` | 0 → 0 | 0 → 0 | - → - | 0 → 0 | 0 → 0 |  |  |" in text
