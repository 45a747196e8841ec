"""Deciding whether a known cause explains a failure, by running the predictions of the cause.

A cause explains a failure if both tests hold:

- *marks*: the case has the features that mark the cause, and passes without any one of them, except for symptoms of
  other causes;
- *here* or *there*. Here: the smallest case of the cause, moved to the mode and launch of the failure, fails in this
  way. There: the failing case still fails with only two groups of clues, those of the cause and those that make this
  kind of failure visible. Without the second group, it fails as the cause does, or as the cause's case does at the
  place of this failure.

If no clue marks the cause, or only a NaN that almost every case has in memory, more is required: both *here* and
*there* have to hold, for the worst failure of a case, in the same kernel or with the same error in both kernels, and
for a kind that the cause has shown before or shows on the case's memory. If the same verified mistake explains both,
one half of the second test is enough.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from attnfuzz.harness.family import family_of
from attnfuzz.harness.reduce.ablation import (
    ARGUMENTS,
    CLUES,
    CONTENTS,
    FEATURES,
    TENSOR_FORMS,
    Ablation,
    ablations,
    features_in,
    reseeded,
)
from attnfuzz.harness.search.by_memory import OF_OTHERS, depends_on_memory, needs_nan_in_outputs, same_on_other_memory
from attnfuzz.harness.search.kinds import cannot_have, had, same_error, unlike
from attnfuzz.harness.search.known import KnownCause, seen_with
from attnfuzz.harness.search.likely import counts_of, likeliest, marks_of, may_lack_marks
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.search.refused import is_refused, judged_without
from attnfuzz.harness.verdict.failures import FAULTS, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import WRONG, Fingerprint
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Outputs
from attnfuzz.reference.case_file import possible
from attnfuzz.reference.features.row import Feature
from attnfuzz.reference.mistake import Mistake

SHARE = 0.4
"""Share of a failure's shrinking budget for testing causes."""

ATTRIBUTION = ShrinkBudget(runs=150, seconds=3.0)
"""Budget for testing causes on a failure that there is no time to shrink, or that was shrunk."""

SYMPTOM = ShrinkBudget(runs=150, seconds=3.0)
"""Budget for shrinking a failure that a known cause explains."""

SEEDS = 2
"""Number of value seeds tried on a case that is predicted to fail."""

SEEDS_SURELY = 9
"""Number of value seeds that must pass without a mark, if the case fails by a NaN and the cause by a number."""

_MEMORY = CONTENTS | {FEATURES["table tail"], FEATURES["tombstones"], FEATURES["used workspace"]}
"""Features of memory that must not matter: whether reading such memory fails depends on its contents."""

Allowed = Callable[[Any], bool]


class Attribution(NamedTuple):
    """The known `cause` that explains a failure, if any, in the form of one of its findings, and the case to shrink.

    This is a new case if the failure also occurs without the features of a cause: then another bug is hidden behind it.
    `plain` is the case without the clues that the cause does not need, if it was seen to fail in the same way.
    """

    cause: KnownCause | None
    case: AnyCase
    plain: AnyCase | None = None


def explain(
    pinned: Pinned[Any],
    causes: Iterable[KnownCause],
    allowed: Allowed,
    *,
    mistakes: Collection[Mistake] = (),
    needed: Collection[Feature] = (),
    beside: Iterable[KnownCause] = (),
    share: float = SHARE,
) -> Attribution:
    """Find the cause that explains a pinned failure, within a `share` of the failure's budget.

    `mistakes` explain the failure, and its case passes without any one of the clues `needed`. A case may also fail as
    the known causes `beside` do. An exception from the backend's own code has the cause that is known to raise it.
    """
    case = pinned.first
    observation = pinned.observation(case)
    exception = "" if observation is None else observation.exception
    if (raising := next((each for each in causes if exception in each.exceptions), None)) is not None:
        return Attribution(raising, case)
    known = likeliest((each for each in causes if type(each.case) is type(case)), case, pinned.fingerprint)
    for cause in (way for each in known for way in each.seen_like(pinned.fingerprint)):
        if pinned.left <= 1 - share:
            break
        marks = marks_of(cause, case, pinned.fingerprint, needed)
        if marks is None:
            continue
        others = [each for each in (*causes, *beside) if each.name != cause.name]
        same_mistake = not set(mistakes).isdisjoint(cause.mistakes)
        test = _Test(cause, marks, case, pinned, allowed, others, needed, same_mistake=same_mistake)
        failing = test.failing_without()
        if failing is not None:
            case = failing
        elif test.passes_without and not test.needs_other_outputs and test.predicted:
            return Attribution(cause, case, test.plain)
    return Attribution(None, case)


def explained_as_it_is(
    pinned: Pinned[Any],
    causes: Iterable[KnownCause],
    allowed: Allowed,
    budget: ShrinkBudget,
    *,
    needed: Collection[Feature] = (),
) -> KnownCause | None:
    """Return the cause that explains a failure, or None, within a separate budget. Hidden failures are ignored."""
    pinned.limit(budget)
    found = explain(pinned, causes, allowed, needed=needed, share=1)
    return found.cause if found.case == pinned.first else None


class _Test:
    """Runs that test whether `cause` explains the failure of `case`."""

    def __init__(
        self,
        cause: KnownCause,
        marks: frozenset[Feature],
        case: AnyCase,
        pinned: Pinned[Any],
        allowed: Allowed,
        others: Sequence[KnownCause],
        needed: Collection[Feature],
        *,
        same_mistake: bool,
    ) -> None:
        self._cause = cause
        self._others = others
        self._marks = marks
        self._case, self._family = case, family_of(case)
        self._pinned = pinned
        self._allowed = allowed
        self._kind, self._its_kinds = pinned.fingerprint.kind, {each.kind for each in cause.symptoms}
        self._needed, self._required = needed, frozenset[Feature]()
        self._own_needs = frozenset(needed) - _MEMORY - seen_with(pinned.fingerprint)
        self._same_mistake = same_mistake
        self._shown = seen_with(pinned.fingerprint)
        self.passes_without = True
        self.plain: AnyCase | None = None

    def failing_without(self) -> AnyCase | None:
        """Return a variant without one of the marks of the cause that still fails in the same way, or None.

        Sets `passes_without`: whether all variants were run and passed. Without a clue of the cause, a variant has to
        pass altogether, except for symptoms of other causes. Without a feature that makes the failure visible, the
        cause itself may fail in another way. A feature that the backend requires marks no cause.
        """
        removed = list(self._without(self._case, self._marks))
        self.passes_without = len(removed) == len(self._marks)
        failing = filter(None, map(self._failing_variant, removed))
        if (variant := next(failing, None)) is not None:
            return variant
        return self._failing_without_counts() if self.passes_without else None

    def _failing_variant(self, ablation: Ablation[AnyCase]) -> AnyCase | None:
        """Return a variant without a mark that still fails in the same way, or None. See `failing_without`."""
        feature, judged = ablation.feature, False
        known = (*self._others, self._cause) if feature in self._shown else self._others
        for variant in judged_without(self._pinned, ablation, self._case, self._allowed):
            judged = True
            for again in reseeded(variant, self._pinned.fresh_seeds + 1):
                verdict = self._pinned.judged(again)
                if verdict is None or self._fails_unknown(again, verdict, known):
                    self.passes_without = False
                if self._pinned.observation(again) is not None:
                    return again
                if self._pinned.fails(again):
                    # It fails with a wrong number instead of a NaN, even if another cause is known to do so.
                    self.passes_without = False
        if not judged:
            self._marks -= {feature}
            self._required |= {feature}
            self.passes_without &= bool(self._marks) or may_lack_marks(
                self._cause, self._pinned.fingerprint, self._needed, required=self._required
            )
        return None

    def _failing_without_counts(self) -> AnyCase | None:
        """Return a variant without the multiple requests or queries that the cause needs, if it still fails alike.

        Two bugs of one feature fail alike in many cases. But one may be wrong only in later rows of a request, and the
        other only in later requests.
        """
        needs = counts_of(self._cause) - self._shown
        variants = (variant for each in self._without(self._case, needs) for variant in each.variants)
        tried = (again for variant in variants for again in self._tried(variant))
        return next((again for again in tried if self._pinned.observation(again) is not None), None)

    def _fails_unknown(self, case: AnyCase, verdict: Verdict, known: Collection[KnownCause]) -> bool:
        """Return whether the worst failure of a case that lacks a clue of the cause belongs to no `known` cause."""
        if not (self._marks & CLUES and verdict.failures):
            return False
        worst = Fingerprint.of(case.backend, verdict.failures[0])
        return not any(each.shows_as(worst) for each in known)

    @property
    def needs_other_outputs(self) -> bool:
        """Whether the case passes with old numbers in the outputs, while the cause's case still fails."""
        its = self._cause.case, self._cause.fingerprint
        own = self._case, self._pinned.fingerprint
        nan = own[0].outputs is Outputs.POISONED and own[1].kind in WRONG and its[1].kind in WRONG
        return nan and needs_nan_in_outputs(self._pinned, *own) and not needs_nan_in_outputs(self._pinned, *its)

    @property
    def predicted(self) -> bool:
        """Whether the cause predicts the failure in its mode and kernel."""
        here = self._cause.case, self._case, self._pinned.fingerprint
        if self._elsewhere:
            there = self._case, self._cause.case, self._cause.fingerprint
            return self._alike_elsewhere and self._misread(*here) and self._misread(*there)
        if self._marks & TENSOR_FORMS and self._misread(*here):
            return True
        if self._marks & CLUES - CONTENTS and self._is_one_stray_access:
            return True
        if self._marks & CLUES - CONTENTS or self._same_mistake:
            if self._fails_here(exactly=True) or (not unlike(self._kind, self._its_kinds) and self._fails_there()):
                return True
            # A wrong number there and a NaN here may be two bugs, one of which passed without the marks by chance.
            return not self._needs_other_clues and self._fails_here() and self._passes_surely
        if self._stands_beside or not (self._pinned.fingerprint.kernel in self._cause.kernels or self._same_error):
            return False
        if self._reads_memory_unlike_the_cause or self._of_another_kind:
            return False
        # The cause's case does not need a relation.
        related = FEATURES["relation"] in self._shown
        return (related or self._fails_here() or self._fails_on_its_memory()) and self._fails_there()

    @property
    def _needs_other_clues(self) -> bool:
        """Whether the failure needs a clue that the cause's case does not have, other than contents of memory."""
        return not self._own_needs <= features_in(self._cause.case)

    @property
    def _is_one_stray_access(self) -> bool:
        """Whether only one of both failures is a fault, and each case between both fails like one of them.

        Whether a stray access shows as a fault, a NaN or a wrong number depends on sizes and places. If these change
        part by part, the same stray access keeps failing.
        """
        ours, its = self._pinned.fingerprint, self._cause.fingerprint
        if (ours.kind in FAULTS) == (its.kind in FAULTS) or not {ours.kind, its.kind} <= WRONG | FAULTS:
            return False
        if ours.backend != its.backend or self._needs_other_clues:
            return False
        between = [each for each in self._family.between(self._cause.case, self._case) if self._can_show(each)]
        return bool(between) and all(map(self._strays, between))

    def _can_show(self, case: AnyCase) -> bool:
        return possible(case) and self._allowed(case) and self._marks <= features_in(case)

    def _strays(self, case: AnyCase) -> bool:
        """Return whether a case has a fault, or a wrong number or NaN at the place of one of the two failures."""
        places = {self._pinned.fingerprint.place, self._cause.fingerprint.place}
        verdicts = filter(None, map(self._pinned.judged, self._tried(case)))
        failures = (each for verdict in verdicts for each in verdict.failures)
        return any(each.kind in FAULTS or (each.kind in WRONG and each.place in places) for each in failures)

    @property
    def _elsewhere(self) -> bool:
        """Whether the cause has only been seen in other kernels of other backends."""
        ours = self._pinned.fingerprint
        return all(each.backend != ours.backend and each.kernel != ours.kernel for each in self._cause.symptoms)

    @property
    def _alike_elsewhere(self) -> bool:
        """Whether the failure is of the cause's kind. A kernel that misreads a tensor may fail in any way."""
        ours, its = self._pinned.fingerprint, self._cause.fingerprint
        return bool(self._marks & TENSOR_FORMS) or (ours.kind, ours.place) == (its.kind, its.place)

    def _misread(self, case: AnyCase, to: AnyCase, fingerprint: Fingerprint) -> bool:
        """Return whether a case fails where `to` does, and passes there with the arguments in their plain form."""
        if not self._marks & ARGUMENTS:
            return False
        anyhow = bool(self._marks & TENSOR_FORMS)
        return any(
            self._some_fails(iter((each,)), fingerprint, exactly=True, anyhow=anyhow) and not self._fails_plainly(each)
            for each in self._family.moved(case, to, fingerprint)
        )

    def _fails_plainly(self, case: AnyCase) -> bool:
        """Return whether a case fails, or is refused, without a mark that is a form, an edge or an earlier use."""
        variants = (variant for each in self._without(case, self._marks & ARGUMENTS) for variant in each.variants)
        verdicts = map(self._pinned.judged, variants)
        return any(each is None or each.failures or each.unsupported is not None for each in verdicts)

    @property
    def _passes_surely(self) -> bool:
        """Whether the case passes without each mark, with many seeds: a stray read may pass by chance."""
        removed = self._without(self._case, self._marks - self._shown)
        tried = (again for each in removed for variant in each.variants for again in reseeded(variant, SEEDS_SURELY))
        return not any(self._wrong_alike(again) for again in tried)

    @property
    def _stands_beside(self) -> bool:
        """Whether the worst failure of the case is like the cause's: then failing like the cause is no evidence."""
        worst = Fingerprint.of(self._case.backend, self._pinned.verdict(self._case).failures[0])
        return worst != self._pinned.fingerprint and self._cause.shows_as(worst)

    @property
    def _reads_memory_unlike_the_cause(self) -> bool:
        """Whether the failure depends on memory that must not matter, while the cause has the same error regardless.

        A stray read may hit other requests' keys in the cause's case, and unused memory here.
        """
        if self._marks & OF_OTHERS:
            return False
        cause = self._cause
        return depends_on_memory(self._pinned, self._case, self._pinned.fingerprint) and same_on_other_memory(
            self._pinned, cause.case, cause.fingerprint
        )

    @property
    def _of_another_kind(self) -> bool:
        """Whether the cause has not shown failures of this kind, and does not show them on this case's memory either.

        No clue marks the cause: it fails almost everywhere, and so does any case that also fails in another way. A NaN
        must come from memory on which the cause's case gives a NaN, too. A fault must come from memory on which the
        cause's case has a fault that it has nowhere else.
        """
        if had(self._kind, self._its_kinds):
            return False
        if cannot_have(self._kind, self._its_kinds):
            return True
        here, on_its_memory = self._fails_here(exactly=True), self._fails_on_its_memory(exactly=True)
        if self._shown or (self._kind in WRONG and not WRONG.isdisjoint(self._its_kinds)):
            return not (here or on_its_memory)
        return here or not on_its_memory

    @property
    def _same_error(self) -> bool:
        """Whether the cause's case has the same error in this failure's mode, or this case in the cause's mode."""
        ours, its = (self._case, self._pinned.fingerprint), (self._cause.case, self._cause.fingerprint)
        return self._errs_alike(its, ours) or self._errs_alike(ours, its)

    def _errs_alike(self, own: tuple[AnyCase, Fingerprint], other: tuple[AnyCase, Fingerprint]) -> bool:
        """Return whether a case has the same error where the other fails. Another bug would have another error."""
        (case, here), (to, there) = own, other
        error = self._failure(case, here)
        # The first two candidates have the inputs of `case`.
        candidates = (
            each for each in islice(self._family.moved(case, to, there), 2) if possible(each) and self._allowed(each)
        )
        return error is not None and any(same_error(error, self._failure(each, there)) for each in candidates)

    def _failure(self, case: AnyCase, fingerprint: Fingerprint) -> Observation | None:
        """Return the failure of a case that has this fingerprint, or None."""
        verdict = self._pinned.judged(case)
        return None if verdict is None else fingerprint.among(verdict.failures)

    def _fails_here(self, *, exactly: bool = False) -> bool:
        """Return whether the cause's case fails like this one in its place. With `exactly`, a NaN must stay a NaN."""
        fingerprint = self._pinned.fingerprint
        return self._some_fails(self._moved(self._cause.case, self._case, fingerprint), fingerprint, exactly=exactly)

    def _fails_on_its_memory(self, *, exactly: bool = False) -> bool:
        """Return whether the cause's case fails like this case with this case's tables, views and workspace.

        A stray read shows as a fault, a NaN or a wrong number, depending on memory. Another bug may need these
        features, so this counts as evidence only if the case fails as the cause does without them.
        """
        case, fingerprint = self._case, self._pinned.fingerprint
        placed = (self._family.on_memory_of(each, case) for each in self._moved(self._cause.case, case, fingerprint))
        return self._some_fails(placed, fingerprint, exactly=exactly)

    def _fails_there(self) -> bool:
        """Return whether this case, made plain, fails as the cause does, or as the cause's case does in its place."""
        own = self._shown - self._marks
        # Without them, the cause may fail in its own way, like a row with too few keys without sinks.
        its = seen_with(self._cause.fingerprint) - self._marks - own - CONTENTS if self._marks else frozenset()
        if self._own_needs - self._marks - its:
            return False
        plain = self._plain(self._case, self._marks | own | its)
        left = self._without(plain, CLUES - self._marks - own - its)
        if not all(is_refused(self._pinned, each) for each in left):
            return False
        tried = (case for case in self._bare(plain, (own | its) - CONTENTS) if not features_in(case) & its)
        # Without a mark, a case that fails alike before it is made plain is no evidence.
        bare = (case for case in tried if self._marks or not own or case != plain)
        fails = any(map(self._fails_like_the_cause, bare))
        if fails and self._pinned.observation(plain) is not None:
            self.plain = plain
        return fails

    def _plain(self, case: AnyCase, kept: frozenset[Feature]) -> AnyCase:
        """Return the case without as many clues that are not `kept` as possible, while it still fails in the same way.

        For a stray access, or if that way of failing is visible in some cases only, any new failure is enough.
        """
        # Removing one feature may bring back another: longer requests may outgrow a window.
        for feature in (*sorted(CLUES - kept), *sorted(CLUES - kept)):
            # A NaN becomes a wrong number where memory holds numbers. If that happens for another feature, it is
            # another fault.
            exactly = feature not in _MEMORY and self._pinned.observation(case) is not None
            variants = (variant for each in self._without(case, {feature}) for variant in each.variants)
            tried = (again for variant in variants for again in self._tried(variant))
            case = next((again for again in tried if self._still_fails(again, exactly=exactly)), case)
        return case

    def _still_fails(self, case: AnyCase, *, exactly: bool) -> bool:
        if not self._shown and self._pinned.fingerprint.kind not in FAULTS:
            return self._pinned.observation(case) is not None if exactly else self._wrong_alike(case)
        # A failure that already occurred with this one may belong to the cause without being the reason for this one.
        beside = {Fingerprint.of(self._case.backend, each) for each in self._pinned.verdict(self._case).failures}
        verdict = self._pinned.judged(case)
        failures = () if verdict is None else verdict.failures
        return self._wrong_alike(case) or any(Fingerprint.of(case.backend, each) not in beside for each in failures)

    def _wrong_alike(self, case: AnyCase) -> bool:
        verdict = self._pinned.judged(case)
        return verdict is not None and self._pinned.fingerprint.wrong_among(verdict.failures) is not None

    def _bare(self, case: AnyCase, shown: frozenset[Feature]) -> Iterator[AnyCase]:
        """Yield the case, then variants without the features that make its failure visible."""
        yield case
        for feature, variants in self._without(case, shown):
            for variant in variants:
                yield from self._bare(variant, shown - {feature})

    def _fails_like_the_cause(self, case: AnyCase) -> bool:
        """Return whether a case fails with a symptom of the cause, or as the cause's case does in its place."""
        cause = self._cause
        verdict = self._pinned.judged(case)
        for failure in () if verdict is None else verdict.failures:
            fingerprint = Fingerprint.of(case.backend, failure)
            if cause.shows_as(fingerprint):
                return True
            if not seen_with(fingerprint) and self._some_fails(
                self._family.moved(cause.case, case, fingerprint), fingerprint
            ):
                return True
        return self._some_fails(self._moved(case, cause.case, cause.fingerprint), cause.fingerprint)

    def _moved(self, case: AnyCase, to: AnyCase, fingerprint: Fingerprint) -> Iterator[AnyCase]:
        """Yield the cases of `moved`. Without a mark, yield only those that show the failure as well as `to` does."""
        seen = seen_with(fingerprint)
        alike = features_in(to) & seen
        for each in self._family.moved(case, to, fingerprint):
            if self._marks or features_in(each) & seen == alike:
                yield each

    def _without(self, case: AnyCase, features: Collection[Feature]) -> Iterator[Ablation[AnyCase]]:
        return ablations(case, allowed=self._allowed, among=features)

    def _tried(self, case: AnyCase) -> Iterator[AnyCase]:
        """Return the case with a few value seeds, or with more if the failure is flaky."""
        return reseeded(case, max(SEEDS, self._pinned.fresh_seeds))

    def _some_fails(
        self, cases: Iterator[AnyCase], fingerprint: Fingerprint, *, exactly: bool = False, anyhow: bool = False
    ) -> bool:
        """Return whether one of the possible cases fails like this, or `anyhow`, with some value seed."""
        for case in cases:
            if possible(case) and self._allowed(case):
                for again in self._tried(case):
                    verdict = self._pinned.judged(again)
                    if verdict is None:
                        continue
                    if self._alike(fingerprint, verdict.failures, exactly=exactly) or (anyhow and verdict.failures):
                        return True
        return False

    def _alike(self, fingerprint: Fingerprint, failures: Sequence[Observation], *, exactly: bool) -> bool:
        """Return whether one of the failures has the same kernel, mode, place and kind.

        A wrong number and a NaN count as the same kind, except with `exactly`. A kernel that reads memory that the host
        has overwritten may fail in any way.
        """
        if FEATURES["late device"] in self._marks:
            return bool(failures)
        return (fingerprint.among(failures) if exactly else fingerprint.wrong_among(failures)) is not None
