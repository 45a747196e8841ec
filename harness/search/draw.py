"""The cases that a search draws from."""

from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.reference.case import Case, Guard
from attnfuzz.strategies.cases import cases
from attnfuzz.strategies.lean import NO_LEAN, Lean


def drawn_cases(name: str, guard: Guard | None = None, lean: Lean = NO_LEAN) -> SearchStrategy[Case]:
    """The cases that the backend called `name` supports, with tensors flush with `guard` if one is given.

    What `lean` names is drawn more often than otherwise.

    Raises UnknownBackend or BackendFileError.
    """
    strategy = cases(resolve(name).capability, name, lean)
    if guard is None:
        return strategy
    return strategy.map(lambda case: replace(case, guard=guard))
