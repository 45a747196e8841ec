"""A check of a user's backend on plain cases, before it is fuzzed.

A mistake in the function around a kernel fails nearly all of them, and would be reported as bugs of attention.
"""

import math
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from attnfuzz.harness.backends.description import Rehearsed
from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.calls.trace import Untraceable
from attnfuzz.harness.family import family_of, family_with
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.describe import call_lines
from attnfuzz.harness.verdict.failures import DEATHS, Kind, Observation, Verdict
from attnfuzz.harness.verdict.printable import in_a_line, printable
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.harness.verdict.wording import count
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Case, PageOrder, Unused
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.mistake import Mistake
from attnfuzz.reference.user_error import UserError

SECONDS = 5.0
"""Time from the first answer after which no further case begins: cases that hang or compile take long."""

_NEARLY_ALL = 0.9

_MOST_LINES = 12
"""Lines of a message, for one screen."""

_BASIC = (Kind.RAISED, Kind.UNEXPECTED_REJECTION, *sorted(DEATHS), Kind.UNWRITTEN)
"""Kinds from which others follow, the most basic first: rows that were not written have wrong numbers."""

_OF_ARGUMENTS = (Kind.ILLEGAL_ACCESS, Kind.MISALIGNED, Kind.WORKER_DIED, Kind.UNWRITTEN, Kind.OUTPUT_MISMATCH)
"""Kinds of failures that wrong arguments cause in all cases."""

_COMPARE = (
    "All cases fail: compare the call below with the kernel's parameters, their order, dtypes and axes. Lengths, "
    "offsets and page ids are int32; lengths count keys, offsets rows of queries, and ids pages of the cache. A "
    "pointer into a temporary tensor dangles: keep the tensor in a variable until the call has returned."
)

_WRITES_MORE = (
    " out has a row for each query token, in the dtype of the queries: a kernel that writes float32, or takes offsets "
    "of rows for lengths, writes past its end."
)

_KEPT = (
    "The first of them passes in a fresh process: something is kept from an earlier call, such as a plan, a workspace "
    "or a flag."
)

_DIFFERS = (
    "The first of them fails otherwise when it is run once more: numbers are random, threads race, or the output is "
    "still written after the function has returned."
)

_SMALL = 10.0
"""Errors below this number of bounds may be roundings: a step of weights in int8 is twice that of bfloat16."""

_ROUNDS = (
    "The errors are less than ten times the bounds: the kernel may round more than its noise model says, such as "
    "weights in 8 bits or logits in 16. Choose another model: docs/guides/noise-models.md."
)

_ALL_ROWS = re.compile(r"(\d+) of \1 such rows|^(?!.*such rows)", re.DOTALL)
"""A message that counts all rows as wrong, or none."""


class CannotCall(UserError):
    """A backend that raises, writes nothing, or writes another shape in nearly all plain cases. The message says so."""


class Symptom(NamedTuple):
    """A way in which plain cases fail, the first of them, and its failure there."""

    cases: tuple[AnyCase, ...]
    observation: Observation

    @property
    def is_of_the_call(self) -> bool:
        """Whether it is a mistake in calling the kernel: wrong numbers and stray accesses may be the kernel's."""
        found = self.observation
        return found.kind in (Kind.RAISED, Kind.UNEXPECTED_REJECTION, Kind.UNWRITTEN) or (
            found.kind in (Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH) and found.tier == Tier.T0
        )


class PlainCheck(NamedTuple):
    """The plain cases of a backend that were judged, the symptoms of those that failed, and the calls of the first.

    `beneath_nan` is the failure of the first if slots and pages without a token hold numbers instead of NaN, if it was
    run so and failed. `passes_alone`: the first passes in a worker that has run no other case. `differs`: it fails
    otherwise when it is repeated there.
    """

    backend: str
    judged: tuple[AnyCase, ...]
    symptoms: tuple[Symptom, ...]
    calls: str = ""
    beneath_nan: str = ""
    passes_alone: bool = False
    differs: bool = False

    @property
    def failed(self) -> int:
        """The number of cases that failed."""
        return sum(len(symptom.cases) for symptom in self.symptoms)

    @property
    def is_of_the_call(self) -> bool:
        """Whether the backend can't be fuzzed, because nearly all cases fail by the way in which it is called."""
        wrong = sum(len(symptom.cases) for symptom in self.symptoms if symptom.is_of_the_call)
        return wrong > 0 and wrong >= _NEARLY_ALL * len(self.judged)

    @property
    def is_past_the_end(self) -> bool:
        """Whether all cases have NaN in their outputs, as for a kernel that attends to slots without a token."""
        attention = all(isinstance(case, Case) for case in self.judged)
        kinds = {symptom.observation.kind for symptom in self.symptoms}
        return attention and kinds == {Kind.NOT_FINITE} and self.failed == len(self.judged)

    @property
    def _with_numbers(self) -> str:
        return f" With numbers there, the first case fails like this:\n  {self.beneath_nan}" if self.beneath_nan else ""

    @property
    def headline(self) -> str:
        """The number of cases that fail, and the explanation of the most frequent symptom, if there is one."""
        name, found = in_a_line(self.backend), self.symptoms[0].observation
        _, _, why = (found.message if found.mistakes else self.beneath_nan).partition("\n")
        why = "it passes in a fresh process" if self.passes_alone else in_a_line(" ".join(why.split()))
        return f"{name} fails {self.failed} of {count(len(self.judged), 'plain case')}{why and f': {why}'}."

    @property
    def words(self) -> str:
        """The result, with the most frequent symptom's message and the arguments of its first call, for one screen."""
        name = in_a_line(self.backend)
        if not self.judged:
            return f"{name}: no plain case is supported, so nothing was checked."
        if not self.symptoms:
            return f"{name} passes {count(len(self.judged), 'plain case')}: {_range(self.judged)}."
        return "\n".join(self._lines(name))

    def _lines(self, name: str) -> Iterable[str]:
        yield f"{name} fails {self.failed} of {count(len(self.judged), 'plain case')}."
        for symptom in self.symptoms:
            found = symptom.observation
            where = f" at {found.place}" if found.place else ""
            yield ""
            yield f"{found.kind}{where} in {count(len(symptom.cases), 'case')} ({_range(symptom.cases)})"
            yield from (f"  {line}" for line in printable(found.message).splitlines()[:_MOST_LINES])
        if advice := self._advice():
            yield ""
            yield advice
        if self.calls:
            yield ""
            yield self.calls

    def _advice(self) -> str:
        """Return the likely remedy, or "" if it is not known."""
        first = self.symptoms[0].observation
        if self.passes_alone:
            return _KEPT
        if self.differs and not first.mistakes:
            return _DIFFERS
        if all(map(_is_small, self.symptoms)):
            return _ROUNDS
        if self.failed == len(self.judged):
            if self.is_past_the_end:
                return (
                    "Slots and pages without a token hold NaN, which a weight of 0 does not remove. The kernel may "
                    "read more keys than seq_lens says, which counts the new tokens of a request, too, other pages "
                    f"than block_tables says, or the axes of the cache in another order.{self._with_numbers}"
                )
            if first.kind is Kind.UNWRITTEN and _ALL_ROWS.search(first.message):
                name = "lse" if first.place == "lse" else "out"
                write = f"{name}.copy_(result). An assignment, {name} = result, writes none."
                return f"Write every row of the given tensor: {write}"
            if first.kind in _OF_ARGUMENTS and set(first.mistakes) <= {Mistake.NO_KEYS}:
                past_out = first.kind is Kind.ILLEGAL_ACCESS and first.place == "out"
                return f"{_COMPARE}{_WRITES_MORE if past_out else ''}"
        return self._of_some_cases()

    def _of_some_cases(self) -> str:
        failed = [case for symptom in self.symptoms for case in symptom.cases]
        passed = [case for case in self.judged if case not in failed]
        for failing, passing in zip(_columns(failed), _columns(passed), strict=False):
            if all(failing) and not set(failing) & set(passing):
                others = f"none with {', '.join(passing)}{_only_in(failed, passed)}" if all(passing) else "no others"
                return (
                    f"All cases with {', '.join(failing)} fail, and {others}. "
                    "If the kernel does not support the former, leave them out of its Capability."
                )
        return ""


def _is_small(symptom: Symptom) -> bool:
    found = symptom.observation
    return not found.mistakes and found.margin is not None and found.margin < _SMALL


def _only_in(failed: Iterable[AnyCase], passed: Iterable[AnyCase]) -> str:
    """Return the features that all failing cases have and no passing one, as a clause, or ""."""
    common = frozenset.intersection(*map(_features, failed)).difference(*map(_features, passed))
    return f": the former have {', '.join(sorted(common))}" if common else ""


def _features(case: AnyCase) -> frozenset[str]:
    return frozenset(each.name for each in family_of(case).table.features_in(case))


def check(backend: str, runner: Runner) -> PlainCheck:
    """Run the plain cases of a backend, most basic symptom first. Raises like `Runner.verdict`."""
    judged: list[AnyCase] = []
    found: dict[tuple[Kind, str, str], Symptom] = {}
    deadline = math.inf
    capability = resolve(backend).capability
    for case in family_with(capability).plain_cases(capability, backend):
        if time.monotonic() >= deadline:
            break
        verdict = runner.verdict(case)
        deadline = min(deadline, time.monotonic() + SECONDS)
        if verdict.unsupported is None:
            judged.append(case)
            if verdict.failures:
                basic = min(verdict.failures, key=_rank)
                key = basic.kind, basic.place, basic.exception
                if key not in found:
                    basic = min(runner.explained(case, verdict).failures, key=_rank)
                first = found.get(key, Symptom((), basic))
                found[key] = first._replace(cases=(*first.cases, case))
    symptoms = sorted(found.values(), key=lambda each: _rank(each.observation))
    result = PlainCheck(backend, tuple(judged), tuple(symptoms), _calls(symptoms, runner))
    if symptoms:
        passes_alone, differs = _again(symptoms[0], runner)
        result = result._replace(passes_alone=passes_alone, differs=differs)
    return result._replace(beneath_nan=_beneath_nan(symptoms[0], runner)) if result.is_past_the_end else result


def _again(symptom: Symptom, runner: Runner) -> tuple[bool, bool]:
    """Return whether the first case of a symptom passes in a fresh worker, and whether it fails otherwise there again.

    One that ended its worker was run in a fresh one. The case is repeated in one worker: random numbers are the same in
    all workers, which are forked from one process.
    """
    if symptom.observation.kind in DEATHS:
        return False, False
    runner.renew()
    first, second = (runner.verdict(symptom.cases[0]) for _ in range(2))
    return not first.failures, bool(first.failures) and _first_lines(first) != _first_lines(second)


def _first_lines(verdict: Verdict) -> set[tuple[Kind, str, str]]:
    return {(each.kind, each.place, each.message.partition("\n")[0]) for each in verdict.failures}


def _beneath_nan(symptom: Symptom, runner: Runner) -> str:
    """Return the failure of a symptom's first case with numbers in slots and pages without a token, or "".

    Its pages are reversed: a kernel that ignores page ids might read pages in a row.
    """
    case = symptom.cases[0]
    assert isinstance(case, Case)
    pages = replace(case.pages, behind=Unused.NUMBERS, free=Unused.NUMBERS, order=PageOrder.REVERSED)
    case = replace(case, pages=pages)
    verdict = runner.verdict(case)
    if not verdict.failures:
        return ""
    message = min(runner.explained(case, verdict).failures, key=_rank).message
    return "\n  ".join(printable(message).splitlines()[:_MOST_LINES])


def check_users(backends: Iterable[str], tell: Callable[[str], None]) -> None:
    """Check those backends that come from a user's file. `tell` gets the words on those with failures.

    Raises CannotCall for one that fails nearly all cases by the way in which it is called.
    """
    users = [name for name in backends if isinstance(resolve(name), Rehearsed)]
    if not users:
        return
    with Runner(users, progress=tell) as runner:
        for name in users:
            result = check(name, runner)
            if result.is_of_the_call:
                again = f"Nothing was fuzzed. Once it is fixed, see whether it passes: attnfuzz check {name}"
                raise CannotCall(f"{result.words}\n\n{in_a_line(again)}")
            if result.symptoms:
                tell(f"{result.headline} Look at it first: attnfuzz check {in_a_line(name)}")


def _rank(found: Observation) -> int:
    return _BASIC.index(found.kind) if found.kind in _BASIC else len(_BASIC)


def _calls(symptoms: list[Symptom], runner: Runner) -> str:
    """Return the arguments of the calls in the first case that fails, if they can be serialized."""
    if not symptoms or symptoms[0].observation.kind is Kind.HANG:
        return ""
    with suppress(Untraceable):
        _, calls = runner.trace(symptoms[0].cases[0])
        if calls is not None:
            return "\n".join((*call_lines(calls), *_cache_lines(symptoms[0].cases[0])))
    return ""


def _cache_lines(case: AnyCase) -> Iterable[str]:
    """Yield a line on the axes of a case's cache: shapes don't tell the layouts of pages apart."""
    if isinstance(case, Case) and case.geometry.latent is None:
        layout = case.geometry.kv_layout
        axes = {KvLayout.HND: "KV heads, slots of the page", KvLayout.NHD: "slots of the page, KV heads"}[layout]
        yield f"k_cache, v_cache are {layout}: [pages, {axes}, head dim]"


def _range(cases: Iterable[AnyCase]) -> str:
    """Return the properties that set cases apart, such as modes, layouts and dtypes."""
    return "; ".join(words for column in _columns(cases) if (words := ", ".join(filter(None, column))))


def _columns(cases: Iterable[AnyCase]) -> list[list[str]]:
    """Return the values of each of these properties."""
    columns = zip(*(family_of(case).outline(case) for case in cases), strict=True)
    return [list(dict.fromkeys(column)) for column in columns]
