"""Code of a mutant in the functions of this process, in place of their own: nothing is imported again, or copied.

A release takes seconds to import. Its functions exist once, whatever refers to them: a function with another
`__code__` is the changed function for all callers.
"""

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType

from attnfuzz.harness.mutation.changes import Mutant, mutated


class Swap:
    """The code of a mutant. `applied` is set once a function has had it."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._codes: dict[tuple[str, int], CodeType] | None = None
        self._changed: list[tuple[FunctionType, CodeType, CodeType]] = []

    @property
    def applied(self) -> bool:
        """Whether functions of this process had the changed code."""
        return bool(self._changed)

    @contextmanager
    def made(self) -> Iterator[None]:
        """Run a block with the changed code. Its file may be imported by the block, so it is looked for each time."""
        if not self._changed:
            self._changed = list(self._functions())
        for function, _, changed in self._changed:
            function.__code__ = changed
        try:
            yield
        finally:
            for function, own, _ in self._changed:
                function.__code__ = own

    def _functions(self) -> Iterator[tuple[FunctionType, CodeType, CodeType]]:
        """Yield each function that the change alters, with its own code and the changed one."""
        for function in functions_of(self._mutant.file):
            own = function.__code__
            if self._codes is None:
                self._codes = {
                    (code.co_qualname, code.co_firstlineno): code
                    for code in _codes(compiled(mutated(self._mutant), own.co_filename))
                }
            changed = self._codes.get((own.co_qualname, own.co_firstlineno))
            if changed is not None and changed != own and changed.co_freevars == own.co_freevars:
                yield function, own, changed


def compiled(tree: ast.Module, file: str) -> CodeType:
    """Compile a module as Python does when it imports one."""
    return compile(tree, file, "exec", dont_inherit=True)


def functions_of(file: str) -> list[FunctionType]:
    """Return the functions of this process that a file defines."""
    # Objects from before the fork are in the permanent generation, which is not listed.
    gc.unfreeze()
    found = [each for each in gc.get_objects() if type(each) is FunctionType and each.__code__.co_filename == file]
    gc.freeze()
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)
