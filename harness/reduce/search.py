"""The search for a smaller case: try edits, biggest cuts first, and keep failing cases."""

import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from attnfuzz.harness.family import family_of
from attnfuzz.harness.reduce.call_axes import EDITS as CALL_AXES
from attnfuzz.harness.reduce.call_list import EDITS as CALL_LIST
from attnfuzz.harness.reduce.call_objects import EDITS as CALL_OBJECTS
from attnfuzz.harness.reduce.call_plain import EDITS as CALL_PLAIN
from attnfuzz.harness.reduce.meaning import breached, compiled_for
from attnfuzz.harness.reduce.placed_views import tidy
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case_file import possible

C = TypeVar("C", bound=AnyCase)

_FIRST_PATIENCE = 4
"""Number of candidates of one edit that may pass in a row before the next edit is tried, while any edit helps. A case
with many requests has hundreds of small edits, and the big ones of all kinds should come first.
"""

_MOST_PATHS = 6
_LONGEST_PATH = 200
"""Maximum number of paths of edits that are bisected, and of candidates on one."""

_FAR = 7
"""A path is divided after this many of its eighths: few runs fail, and those that do leave little of it."""

CALL_EDITS = (*CALL_LIST, *CALL_OBJECTS, *CALL_AXES, *CALL_PLAIN)


def reduce(
    case: C,
    still_fails: Callable[[C], bool],
    *,
    capability: Capability | None = None,
    stop: Callable[[], bool] = lambda: False,
    budget: int = 500,
    likely: Callable[[C], bool] | None = None,
) -> C:
    """Return the smallest case reached by edits from `case`, which must fail, while `still_fails` holds.

    The case's family has the edits. Candidates that are impossible or not supported by `capability` are skipped. Ends
    when no edit helps, when `stop` returns True, or after `budget` calls of `still_fails`. Deterministic for
    the same arguments and answers.

    With `likely`, which runs nothing, each failing run is taken to be costly: many edits come at once, with which a
    case is `likely` to fail, and if it does not, half as many, before the edits are tried one by one.
    """

    def allowed(candidate: C) -> bool:
        return capability is None or capability.why_not(candidate) is None

    edits = family_of(case).edits(capability)
    if likely is not None:
        case = _leap(case, edits, still_fails, allowed, stop, likely)
    return _search(case, edits, still_fails, allowed, stop, budget)


def reduce_calls(
    case: CallCase,
    still_fails: Callable[[CallCase], bool],
    *,
    same_kernels: bool = False,
    stop: Callable[[], bool] = lambda: False,
    budget: int = 500,
) -> CallCase:
    """Reduce a case made of calls.

    Candidates that break preconditions which `case` keeps are skipped, and if `case` breaks one, so are those that
    break none: an edit must not replace the fault by another. With `same_kernels`, candidates that need kernels
    compiled for another shape are skipped too. A case with `written` or `expected` tensors, or `lists`, is reduced only
    if it fails without them.
    """
    if case.written or case.expected or case.lists:
        # Such results follow from all arguments together, so none of these can change alone. A fault needs none.
        bare = tidy(replace(case, written=(), expected=(), lists=()))
        if not still_fails(bare):
            return case
        case = bare
    breaches, shape = breached(case), compiled_for(case)

    def allowed(candidate: CallCase) -> bool:
        if same_kernels and compiled_for(candidate) != shape:
            return False
        now = breached(candidate)
        return now <= breaches and bool(now) == bool(breaches)

    return _search(case, CALL_EDITS, still_fails, allowed, stop, budget)


def identity(case: AnyCase) -> Hashable:
    """Return a hashable key of a case. Calls have arguments in a dict, and no hash."""
    return hashlib.blake2b(msgspec.json.encode(case)).digest() if isinstance(case, CallCase) else case


def _leap(
    case: C,
    edits: Sequence[Callable[[C], Iterable[C]]],
    still_fails: Callable[[C], bool],
    allowed: Callable[[C], bool],
    stop: Callable[[], bool],
    likely: Callable[[C], bool],
) -> C:
    """Return a smaller case reached by many edits at once.

    The edits of a path that ends where no edit leads to a likely case are divided: the last case of the path that
    fails is found in about two failing runs and a dozen others. The edit after it is left out of the next path.
    """
    vain: set[Hashable] = set()

    def untried(candidate: C) -> bool:
        return identity(candidate) not in vain and allowed(candidate)

    for _ in range(_MOST_PATHS):
        path = [case]

        def follows(candidate: C, path: list[C] = path) -> bool:
            if not likely(candidate):
                return False
            path.append(candidate)
            return True

        _search(case, edits, follows, untried, stop, _LONGEST_PATH)
        failing, passing, tried = 0, len(path), len(path) - 1
        while passing - failing > 1 and not stop():
            if still_fails(path[tried]):
                failing = tried
            else:
                passing = tried
            # Near the end, because only a run that fails is costly.
            tried = failing + max(1, _FAR * (passing - failing) // (_FAR + 1))
        case = path[failing]
        if passing == len(path):
            break
        vain.add(identity(path[passing]))
    return case


def _search(
    case: C,
    edits: Sequence[Callable[[C], Iterable[C]]],
    still_fails: Callable[[C], bool],
    allowed: Callable[[C], bool],
    stop: Callable[[], bool],
    budget: int,
) -> C:
    seen: set[Hashable] = set()

    def untried(edited: Iterable[C]) -> Iterator[C]:
        """Yield the possible and allowed ones among `edited` that were not tried before."""
        for candidate in edited:
            key = identity(candidate)
            if key not in seen:
                seen.add(key)
                if possible(candidate) and allowed(candidate):
                    yield candidate

    patience: float = _FIRST_PATIENCE
    while True:
        progress = False
        for edit in edits:
            tried, in_vain = untried(edit(case)), 0
            while in_vain < patience and (candidate := next(tried, None)) is not None:
                if budget == 0 or stop():
                    return case
                budget -= 1
                in_vain += 1
                if still_fails(candidate):
                    case, progress = candidate, True
                    tried, in_vain = untried(edit(case)), 0
        if not progress:
            if patience == math.inf:
                return case
            patience = math.inf
