"""In which release a failure began and ended."""

import pytest

from attnfuzz.harness.bisect.outcome import Ending, Outcome
from attnfuzz.harness.sweep.course import Course, course_of

ENDINGS = {
    "p": Ending.PASSES,
    "F": Ending.FAILS,
    "?": Ending.FAILS_OTHERWISE,
    "x": Ending.CANNOT_RUN,
    "-": Ending.CANNOT_BE_HAD,
}


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
