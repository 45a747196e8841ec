"""In which release a fault began and ended, in a sentence and in a table."""

import pytest
from fake_releases import ENDINGS
from packaging.version import Version

from attnfuzz.harness.releases.outcomes import Course, Outcome, course_of, in_words


@pytest.mark.parametrize(
    ("letters", "sentence"),
    [
        ("", "No version could be run."),
        ("x-", "No version could be run."),
        ("p", "No version fails: 0.6.0 passes."),
        ("pxp", "No version fails: 0.6.0, 0.6.2 pass; no other could be run."),
        ("ppF", "First fails in 0.6.2 (0.6.1 passes); not fixed in 0.6.2, the newest that could be run."),
        ("pFFx", "First fails in 0.6.1 (0.6.0 passes); not fixed in 0.6.2, the newest that could be run."),
        ("pFFp", "First fails in 0.6.1 (0.6.0 passes); fixed in 0.6.3 (0.6.2 fails)."),
        (
            "px-FF",
            (
                "First fails in 0.6.3 (0.6.0 passes; 0.6.1, 0.6.2 could not be judged); "
                "not fixed in 0.6.4, the newest that could be run."
            ),
        ),
        (
            "xFxp",
            (
                "Fails in 0.6.1 already, the oldest that could be run; "
                "fixed in 0.6.3 (0.6.1 fails; 0.6.2 could not be judged)."
            ),
        ),
        (
            "FF",
            "Fails in 0.6.0 already, the oldest that could be run; not fixed in 0.6.1, the newest that could be run.",
        ),
        ("FpF", "Flaky: fails in 0.6.0, passes in 0.6.1, fails in 0.6.2."),
        (
            "pFpxpFF",
            "Flaky: passes in 0.6.0, fails in 0.6.1, passes in 0.6.2, 0.6.4, fails in 0.6.5, 0.6.6.",
        ),
    ],
)
def test_outcomes_in_words(letters: str, sentence: str) -> None:
    outcomes = {Version(f"0.6.{place}"): Outcome(ENDINGS[letter]) for place, letter in enumerate(letters)}
    assert in_words(outcomes) == sentence


@pytest.mark.parametrize(
    ("letters", "course"),
    [
        ("", Course("-", "-")),
        ("x?-", Course("-", "-")),
        ("ppp", Course("-", "-")),
        ("pFFp", Course("0.1", "0.3")),
        ("FFp", Course("by 0.0", "0.2")),
        ("xFp", Course("by 0.1", "0.2")),
        ("ppF", Course("0.2", "still there")),
        ("pFx", Course("0.1", "still there")),
        ("F?xp", Course("by 0.0", "0.3")),
        ("pFpFp", Course("0.1", "0.4")),
        ("FpF", Course("by 0.0", "still there")),
        ("F?F", Course("by 0.0", "still there")),
    ],
)
def test_the_course_of_a_failure(letters: str, course: Course) -> None:
    outcomes = {f"0.{place}": Outcome(ENDINGS[letter]) for place, letter in enumerate(letters)}
    assert course_of(outcomes) == course
    assert course_of(outcomes).still_there is (course.ended == "still there")
