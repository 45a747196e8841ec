"""Stands for a worker: kernels with faults that need features of a case, and show in some modes and kinds."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fake_search import hunt
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.reduce.ablation import features_in
from attnfuzz.harness.sandbox.case_runner import OneByOne, RepeatingRunner
from attnfuzz.harness.search.messages import AnyMessage
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.reference.case import Case, Mode

MODES = (Mode.DECODE, Mode.EXTEND)


@dataclass(frozen=True)
class Fault:
    """A planted mistake: a step in one of `modes` fails as each of `kinds` if the case has the features in `needs`.

    With `raised_at`, it is an exception from that line.
    """

    needs: Collection[str] = ()
    modes: Collection[Mode] = MODES
    kinds: Sequence[Kind] = (Kind.UNWRITTEN,)
    raised_at: str = ""

    def of(self, case: Case) -> list[Observation]:
        """How `case` fails because of it."""
        if not set(self.needs) <= names_in(case):
            return []
        return [
            Observation(
                kind=kind,
                place="IndexError" if self.raised_at else "out",
                message="wrong",
                step=0,
                mode=each.mode.value,
                kernel="attend",
                raised_at=self.raised_at,
            )
            for kind in self.kinds
            for each in case.steps
            if each.mode in self.modes
        ]


@cache
def names_in(case: Case) -> frozenset[str]:
    """The names of the features that a case has."""
    return frozenset(feature.name for feature in features_in(case))


def featured(*, mode: Mode = Mode.EXTEND, window: int = -1, sinks: bool = False, soft_cap: float = 0.0) -> Case:
    """A case of the backend "fake" with two requests and these features."""
    geometry = replace(HEADS, window_left=window, sinks=sinks, soft_cap=soft_cap)
    lengths = ((1, 40), (1, 9)) if mode is Mode.DECODE else ((3, 40), (5, 9))
    return Case(backend="fake", geometry=geometry, steps=(step(mode, *lengths),), seed=0)


def featured_cases() -> SearchStrategy[Case]:
    """Cases with and without each of the features."""
    return st.builds(
        featured,
        mode=st.sampled_from(MODES),
        window=st.sampled_from((-1, 3)),
        sinks=st.booleans(),
        soft_cap=st.sampled_from((0.0, 30.0)),
    )


class FaultyJudge(OneByOne):
    """A judge of a kernel with `faults` that does not support cases that it `refuses`: `judged` are those it ran."""

    def __init__(self, *faults: Fault, refuses: Callable[[Case], bool] = lambda _: False) -> None:
        self._faults, self._refuses = faults, refuses
        self.judged: list[Case] = []

    def verdict(self, case: Case) -> Verdict:
        """Judge without running anything."""
        self.judged.append(case)
        if self._refuses(case):
            return Verdict(unsupported="refused")
        seen = [observation for fault in self._faults for observation in fault.of(case)]
        return Verdict(observations=tuple(dict.fromkeys(seen)), rows=1)

    def renew(self) -> None:
        """Answer as before: these faults come back."""


def hunted(judge: RepeatingRunner, **task: Any) -> list[AnyMessage]:
    """What a slice tells of cases with and without features."""
    return hunt(judge, featured_cases(), **{"examples": 60, **task})[1]
