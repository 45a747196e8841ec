"""A known cause explains a failure that passes without its marks, and fails with them alone, whatever fails."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from attnfuzz.harness.search.attribute import attribute

Letters = frozenset[str]
"""An input: it has a feature for each letter."""


@dataclass(frozen=True)
class Marked:
    """A cause that needs these letters."""

    marks: Letters


@dataclass
class OfLetters:
    """Predictions about inputs that fail as `wrong` decides."""

    wrong: Callable[[Letters], bool]
    steps: int = 100

    def over(self) -> bool:
        self.steps -= 1
        return self.steps < 0

    def marks(self, cause: Marked, tried: Letters) -> Letters | None:
        return cause.marks if cause.marks <= tried else None

    def without(self, tried: Letters, marks: Collection[str]) -> Iterator[Letters]:
        return (tried - {mark} for mark in sorted(marks))

    def fails(self, variant: Letters) -> bool:
        return self.wrong(variant)

    def passes(self, cause: Marked, variant: Letters, marks: Collection[str]) -> bool:
        return "?" not in variant

    def alone(self, cause: Marked, tried: Letters, marks: Collection[str]) -> Letters | None:
        plain = frozenset(marks)
        return plain if self.wrong(plain) else None


A, B, AB = (Marked(frozenset(marks)) for marks in ("a", "b", "ab"))


def explained(wrong: Callable[[Letters], bool], letters: str, *causes: Marked) -> tuple[Marked | None, str]:
    found = attribute(OfLetters(wrong), frozenset(letters), causes)
    return found[0], "".join(sorted(found[1]))


def test_a_cause_explains_a_failure_that_needs_its_marks_and_nothing_else() -> None:
    assert explained(lambda tried: "a" in tried, "abc", B, A) == (A, "a")


def test_a_failure_that_needs_more_than_the_marks_is_not_explained() -> None:
    assert explained(lambda tried: {"a", "c"} <= tried, "abc", A) == (None, "abc")


def test_a_failure_that_needs_fewer_marks_is_not_explained_and_goes_on_without_one() -> None:
    assert explained(lambda tried: "b" in tried, "abc", AB) == (None, "bc")


def test_a_cause_that_was_tried_before_may_explain_a_failure_beneath_another() -> None:
    """With all letters, the first cause is tried on a case that fails for two reasons."""
    assert explained(lambda tried: bool({"a", "b"} & tried), "ab", A, B) == (B, "b")


def test_a_variant_that_neither_fails_alike_nor_passes_leaves_it_open() -> None:
    assert explained(lambda tried: "a" in tried, "a?", A) == (None, "?a")


def test_no_cause_is_tried_once_the_time_is_over() -> None:
    assert attribute(OfLetters(lambda _: True, steps=0), frozenset("a"), [A]) == (None, frozenset("a"))
