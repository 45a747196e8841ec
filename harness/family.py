"""Families of ops: all that the harness has to know of the cases of one, and of their results.

The harness draws, runs, guards, replays, minimizes, files and reports cases of any family. For everything else it asks
the family of a case, of a backend's capability, or of a result.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from attnfuzz.kernels.interface.guests import offered, shipped
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case_types import FAMILIES, tag_of
from attnfuzz.reference.features.table import FeatureTable
from attnfuzz.strategies.coverage.space import CaseSpace

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy
    from markupsafe import Markup

    from attnfuzz.harness.calls.trace import FileTracer
    from attnfuzz.harness.judge.explain import Stake
    from attnfuzz.harness.judge.judge import Judgement
    from attnfuzz.harness.judge.metamorphic import StepComparison
    from attnfuzz.harness.judge.terms import JudgingTerms
    from attnfuzz.harness.triage.variants import Way
    from attnfuzz.harness.verdict.failures import Observation
    from attnfuzz.harness.verdict.fingerprint import Fingerprint
    from attnfuzz.kernels.interface.backend import Backend, Bench, Session
    from attnfuzz.reference.dtypes import DType
    from attnfuzz.reference.related import Related
    from attnfuzz.strategies.coverage import Pair
    from attnfuzz.strategies.lean import Lean

C = TypeVar("C", bound=AnyCase)

Edit = Callable[[C], Iterable[C]]
"""Yields smaller cases, the smallest first."""


class Family(ABC, Generic[C]):
    """A family of ops. Abstract methods are for each family to define; the others have the defaults of simple ops.

    `title` names the ops in tables, `case_type` is the type of its cases, and `table` has their features: reports show
    which pairs of them were reached. `backends` are its own ones. Users'
    backends have capabilities of exactly the `capability_type`, a struct or a dataclass; without one, the family's
    package has all backends. Results without noise models are compared as `comparison` says, in a clause.
    `harness.families.simple` has families of a few lines.
    """

    title = ""
    case_type: type[C]
    capability_type: type[Any] | None = None
    comparison = "compared bit for bit"
    table = FeatureTable()
    backends: tuple["Backend", ...] = ()

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes of its cases: by default the values of its feature "mode", or the tag of its cases."""
        features = self.table.axes.get("mode", ())
        return tuple(each.partition("=")[2] for each in features) or (tag_of(self.case_type),)

    @abstractmethod
    def runs(self, capability: Any) -> bool:
        """Return whether a backend with this capability is of this family.

        A capability has `device`, `patience`, and `why_not(case)`: the features of a case that are not supported.
        """

    def supports(self, capability: Any) -> str:
        """Return the features that a capability supports as sentences, or "" if there is nothing to choose."""
        return ""

    # Drawing, and coverage

    @abstractmethod
    def cases(self, capability: Any, backend: str, lean: "Lean") -> "SearchStrategy[C]":
        """Return a strategy of valid cases for the named backend, all of which its capability covers."""

    def plain_cases(self, capability: Any, backend: str) -> Iterable[C]:
        """Yield plain cases for the named backend, to see whether it can be called at all."""
        return ()

    def outline(self, case: C) -> tuple[str, ...]:
        """Return the words that set plain cases apart, one for each property."""
        return case.modes

    @cached_property
    def space(self) -> CaseSpace:
        """The space of its cases: features, their pairs, and those that a backend can reach."""
        return CaseSpace(self.table)

    @property
    def has_axes(self) -> bool:
        """Whether its cases have features, whose coverage is measured."""
        return bool(self.table.axes)

    def pair_bits(self, case: C) -> int:
        """Return the pairs of features that a case shows, as bits (`strategies.coverage`)."""
        return self.space.pair_bits(case) if case.modes else 0

    def first_steps(self, case: C, count: int) -> C:
        """Return a case with its first steps alone, or with none: the part of it that ran."""
        return case

    def possible_pairs(self, capability: Any) -> "frozenset[Pair]":
        """Return the pairs of features that a backend can reach."""
        return self.space.possible_pairs(capability)

    # Running and judging, in a worker

    result_type: type[Any]
    """The type of a session's results."""

    persists = False
    """Whether later steps use a wrong result of an earlier one, so that a known failure ends a case."""

    def noise_dtypes(self, capability: Any) -> "tuple[DType, ...]":
        """Return the dtypes for which a backend has noise models, or none if its results are exact."""
        return ()

    def noise_dtype(self, case: C) -> "DType | None":
        """Return the dtype of the noise model that judging needs, or None if results are exact."""
        return None

    def open(self, case: C, backend: Any, bench: "Bench") -> "Session":
        """Open a session on a case."""
        session: Session = backend.open(case, bench)
        return session

    def check(self, result: Any) -> None:
        """Raise TypeError for a result of the right type whose parts are not."""

    @abstractmethod
    def judge(self, case: Any, result: Any, terms: "JudgingTerms") -> "Judgement":
        """Compare a step's result, on the host, with the reference. The case may be made of literal calls."""

    def record(self, case: Any, result: Any, tracer: "FileTracer") -> None:
        """Add the right result to the trace of a step, for scripts. Without it, a script shows no wrong result.

        `tracer.compared` takes any tensors with their right contents, and a bound for the error of each element.
        """

    def related(self, case: C) -> "Related | None":
        """Return the second run of a case that compares two runs."""
        return None

    def compare(self, kept: Any, result: Any, other: "Related", terms: "JudgingTerms") -> "StepComparison":
        """Compare a result of the second run with the judgement that was kept of the first."""
        raise NotImplementedError

    def further(self, case: C, capability: Any) -> "Iterator[tuple[Stake, C]]":
        """Yield variants of a failing case whose runs test explanations of its failure."""
        return iter(())

    # Reducing: smaller and plainer cases. Impossible ones are skipped.

    def edits(self, capability: Any | None) -> tuple[Edit[C], ...]:
        """Return the edits that make a case smaller, those that remove most first."""
        return ()

    def plain(self, case: C) -> Iterator[C]:
        """Yield a case with defaults in place of whatever it is, the plainest first."""
        return iter(())

    def other_values(self, case: C) -> Iterator[C]:
        """Yield the case with values of other kinds, in which a failure may show more often."""
        return iter(())

    def without_a_mode(self, case: C) -> Iterator[C]:
        """Yield the case without the steps of one of its modes."""
        return iter(())

    def rows(self, case: C) -> int:
        """Return the number of rows that are judged one by one: of two cases, that with more fails more often."""
        return 1

    def work(self, case: C) -> int:
        """Return a number that grows with the time that a case takes."""
        return 1

    # Attributing: a failing case where another one fails.

    def moved(self, case: C, to: C, fingerprint: "Fingerprint") -> Iterator[C]:
        """Yield `case` in the place where `to` fails with this fingerprint, then variants that show a failure there."""
        yield case.having(backend=to.backend)

    # Triage

    def other_ways(self, case: C, failing_step: int) -> "Iterator[Way]":
        """Yield ways to run a case that failed at a step (-1: it passed), besides other guards and outputs."""
        return iter(())

    def parts(self, case: C, failing_step: int) -> Iterator[C]:
        """Yield the case up to the step that failed (-1: the last), one for each of its runs."""
        yield case

    # Words and pictures

    @abstractmethod
    def describe(self, case: C, *, notes: bool = True) -> str:
        """Return lines that describe a case to a reader, with the case's own notes."""

    def picture(self, case: C, failure: "Observation") -> "Markup | None":
        """Draw a case with its failure as SVG, if the family has a picture of its cases."""
        return None

    def traits(self, case: C) -> Sequence[str]:
        """Return the words that distinguish the smallest cases of different bugs, in a fixed order."""
        return (*dict.fromkeys(case.modes), *sorted(each.name for each in self.table.features_in(case)))

    def ledger_words(self, case: C) -> frozenset[str]:
        """Return the words for a case that a ledger's entry may name."""
        return self.table.words_of(case)

    def circumstances(self, case: C) -> Iterator[str]:
        """Yield clauses about a case for its cause in a report."""
        return iter(())


def family_of(case: C) -> Family[C]:
    """Return the family of a case."""
    return _with_cases()[type(case)]


@cache
def _with_cases() -> dict[type[AnyCase], Family[Any]]:
    return {each.case_type: each for each in reversed(families())}


def family_with(capability: object) -> Family[Any]:
    """Return the family of the backends with a capability."""
    return next(each for each in families() if each.runs(capability))


def family_judging(result: object, case: AnyCase) -> Family[Any] | None:
    """Return the family of a session's result, that of its case if it has such results, or None if none has."""
    asked = (family_of(case), *families())
    return next((each for each in asked if isinstance(result, each.result_type)), None)


@cache
def families() -> tuple[Family[Any], ...]:
    """Return all families, those of this project first."""
    ours = shipped(FAMILIES)
    return (*ours.values(), *(point.load() for point in offered(FAMILIES) if point.name not in ours))
