"""The words that the terminal and the file have for a sweep."""

import pytest
from fake_engine import ENGINE
from fake_releases import ENDINGS
from harness_cases import decode_case
from msgspec.structs import replace

from attnfuzz.harness.releases.results import Cell, FailureRow, Searched, SweepPlan, SweepResults
from attnfuzz.harness.releases.wanted import Wanted
from attnfuzz.harness.releases.words import (
    budget,
    found_in,
    new_refusals,
    not_yet_run,
    render_markdown,
    sentence,
    shown,
    unable,
    why_not_run,
    without_failure,
)


def row(letters: str, name: str = "one", found: tuple[str, ...] = ()) -> FailureRow:
    cells = {f"1.{place}": Cell(ending=ENDINGS[letter], line=f"why {letter}") for place, letter in enumerate(letters)}
    wanted = Wanted(name=name, title="t", kind="k", case=decode_case("torch_sdpa"), found=found)
    return FailureRow(wanted=wanted, cells=cells)


def results(*rows: FailureRow, examples: int | None = 10, seconds: float | None = None, **more: object) -> SweepResults:
    asked = SweepPlan(
        package="fake", releases=("1.0", "1.1"), kinds=("k", "l"), examples=examples, seconds=seconds, seed=1, jobs=1
    )
    return SweepResults(asked=asked, environment={}, rows=rows, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("release", "words"), [("0.5.9", "0.5.9"), ("@/home/me/sglang", "@sglang"), ("by @/home/me/x@2", "by @x@2")]
)
def test_a_tree_is_shown_by_its_folder(release: str, words: str) -> None:
    assert shown(release) == words


@pytest.mark.parametrize(
    ("letters", "words"),
    [
        ("Fp", "Fails in 1.0 already, the oldest that could be run; fixed in 1.1 (1.0 fails)."),
        ("?x", "Unknown: every release that could be run fails in another way."),
        ("x-", "No version could be run."),
        ("", "Found by a search, and not run in any release yet."),
    ],
)
def test_a_course_is_printed_in_a_sentence(letters: str, words: str) -> None:
    assert sentence(row(letters)) == words


def test_passing_cases_and_cases_that_could_not_be_run_are_listed_apart() -> None:
    quiet, absent = row("px", "quiet"), row("x-", "absent")
    waiting = row("", "waiting")
    several = results(row("Fp"), row("?p"), quiet, absent, waiting)
    assert without_failure(several) == ([quiet], [absent])
    assert not_yet_run(several) == [waiting]


def test_cases_that_could_not_be_run_are_listed_by_reason() -> None:
    """That of releases of which nothing can be run is listed with the releases."""
    assert why_not_run([row("-x", "a"), row("--", "b"), row("x-", "c")]) == "a, c (why x)"
    assert why_not_run([row("--", "b")]) == ""


def test_a_reason_shared_by_all_backends_of_a_release_is_reported_once() -> None:
    both = results(unable={"a": "no wheel", "b": "no wheel"})
    assert unable(both, "1.0", ("a", "b")) == "no wheel"
    one = results(
        unable={"b": "no such class"}, searched={"1.0": Searched(examples=0, cases=0, campaign="", failure="it broke")}
    )
    assert unable(one, "1.0", ("a", "b")) == "b: no such class; it broke"
    assert unable(one, "1.1", ("c", "d")) == ""


def searched(cases: int, **refused: int) -> Searched:
    return Searched(examples=cases, cases=cases, campaign="", refused=refused)


def test_cases_that_a_release_refuses_and_the_one_before_it_does_not_are_named_with_the_reason() -> None:
    later = searched(8, heads=1, pages=3, sinks=2)
    several = results(searched={"1.0": searched(10, heads=2), "1.1": later})
    assert new_refusals(several) == [
        "1.1 refuses 3 drawn cases, 1.0 none: pages",
        "1.1 refuses 2 drawn cases, 1.0 none: sinks",
    ]
    assert "## Refusals\n- 1.1 refuses 3 drawn cases, 1.0 none: pages\n" in render_markdown(several, ENGINE)
    for unknown in (searched(0), replace(searched(10), interrupted=True)):
        assert new_refusals(results(searched={"1.0": unknown, "1.1": later})) == []


def test_found_failures_are_counted_by_release() -> None:
    several = results(row("FF", "a", ("1.0", "1.1")), row("pF", "b", ("1.1",)), row("Fp", "c"))
    assert [found_in(several, release) for release in ("1.0", "1.1")] == [1, 2]


def test_the_budget_of_a_search_is_printed() -> None:
    assert budget(results().asked) == "10 examples of each backend"
    assert budget(results(examples=None, seconds=90.0).asked) == "90 s"


def test_a_table_of_unknown_versions_is_written() -> None:
    assert "nothing searched; attnfuzz ?, torch ?" in render_markdown(results(row("Fp"), examples=None), ENGINE)
