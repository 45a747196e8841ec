"""The tests of a report in JUnit XML, of which each command makes its own."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Test:
    """A test case, passed unless there is an `outcome`: "failure", "error" or "skipped", with a one-line `reason`.

    `kind` and `text` belong to a failure or an error; `out` is output in any case. `seconds` is its time.
    """

    name: str
    outcome: str = ""
    reason: str = ""
    kind: str = ""
    text: str = ""
    out: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Suite:
    """The tests of one backend, or of the campaign as a whole."""

    name: str
    tests: tuple[Test, ...]

    def number(self, outcome: str) -> int:
        """Count the tests with this outcome."""
        return sum(test.outcome == outcome for test in self.tests)
