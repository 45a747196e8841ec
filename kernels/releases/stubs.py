"""Stubs for missing modules: imports of a release beside torch and triton that no attention backend runs.

A stub answers any name with a class that can be subclassed, called, indexed and used as a decorator, as modules do at
import. Names that are read while a backend runs are passed to `note`: they may have chosen a branch.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Union

Note = Callable[[str], None]


class Stubs(MetaPathFinder, Loader):
    """Serves stubs for some modules and all that they contain, ahead of installed ones.

    Attributes:
        note: Called with each name that is read from a stub, such as "transformers.AutoConfig", unless it is None.

    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.note: Note | None = None

    def install(self) -> None:
        """Become the first finder of modules."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop finding modules, and forget those that were found."""
        sys.meta_path.remove(self)
        for name in [name for name in sys.modules if self.serve(name)]:
            del sys.modules[name]

    def serve(self, fullname: str) -> bool:
        """Return whether a module of that name is a stub."""
        return any(fullname == name or fullname.startswith(f"{name}.") for name in self._names)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return a stub's spec; None for other modules."""
        if self.serve(fullname):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Create the stub."""
        return _StubModule(spec.name, self)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stub has no code."""

    def asked(self, name: str) -> None:
        """Call `note`, if it is set."""
        if self.note is not None:
            self.note(name)


class _StubModule(ModuleType):
    def __init__(self, name: str, stubs: Stubs) -> None:
        super().__init__(name)
        self._stubs = stubs

    def __getattr__(self, name: str) -> Any:
        # Python reads __path__, __wrapped__ and the like to inspect an object: a stub has none.
        if _is_special(name):
            raise AttributeError(name)
        found = _stub_class(f"{self.__name__}.{name}", self._stubs)
        # The same class each time, so that isinstance works.
        setattr(self, name, found)
        self._stubs.asked(f"{self.__name__}.{name}")
        return found


class _StubClass(type):
    """The metaclass of stub classes: the operations that modules apply to them at import."""

    _stubs: Stubs

    def __getattr__(cls, name: str) -> Any:
        if _is_special(name):
            raise AttributeError(name)
        found = _stub_class(f"{cls.__module__}.{name}", cls._stubs)
        cls._stubs.asked(f"{cls.__module__}.{name}")
        return found

    def __getitem__(cls, _: object) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __or__(cls, other: object) -> Any:
        # An isinstance may ask for the union with a class that is there.
        return Union[cls, other] if isinstance(other, type) else cls  # noqa: UP007 - `|` would come back here

    def __ror__(cls, other: object) -> Any:
        return Union[other, cls] if isinstance(other, type) else cls  # noqa: UP007 - as above


def _stub_class(path: str, stubs: Stubs) -> Any:
    def init(_self: object, *_: object, **__: object) -> None:
        stubs.asked(f"{path}()")

    def call(_self: object, *arguments: object, **__: object) -> object:
        # A decorator made with arguments returns the object that it decorates.
        return arguments[0] if arguments else None

    return _StubClass(
        path.rpartition(".")[2], (), {"__module__": path, "_stubs": stubs, "__init__": init, "__call__": call}
    )


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
