"""The cases that a search draws from."""

from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from attnfuzz.harness.registry import resolve
from attnfuzz.reference.case import Case, Guard
from attnfuzz.strategies.cases import cases


def drawn_cases(name: str, guard: Guard | None = None) -> SearchStrategy[Case]:
    """The cases that the backend called `name` supports, with tensors flush with `guard` if one is given.

    Raises UnknownBackend or BackendFileError.
    """
    strategy = cases(resolve(name).capability, name)
    if guard is None:
        return strategy
    return strategy.map(lambda case: replace(case, guard=guard))
