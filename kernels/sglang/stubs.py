"""Modules that are not there: what a release imports beside torch and triton, and no attention backend runs.

A stub answers any name with a class that can be subclassed, called, indexed and used as a decorator, which is what
modules do with names when they are imported. What is asked while a backend runs is passed to `note`: it may have
chosen a branch.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Note = Callable[[str], None]


class Stubs(MetaPathFinder, Loader):
    """Serves stubs for some modules and all that is in them, ahead of what is installed.

    Attributes:
        note: Called with each name that is asked of a stub, as "transformers.AutoConfig", unless it is None.

    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.note: Note | None = None

    def install(self) -> None:
        """Be asked first for modules from now on."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Be asked no more."""
        sys.meta_path.remove(self)

    def serve(self, fullname: str) -> bool:
        """Whether a module of that name is a stub."""
        return any(fullname == name or fullname.startswith(f"{name}.") for name in self._names)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """A stub's spec; None for a module that is to be the real one."""
        if self.serve(fullname):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The stub."""
        return _StubModule(spec.name, self)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""

    def asked(self, name: str) -> None:
        """Tell who listens."""
        if self.note is not None:
            self.note(name)


class _StubModule(ModuleType):
    def __init__(self, name: str, stubs: Stubs) -> None:
        super().__init__(name)
        self._stubs = stubs

    def __getattr__(self, name: str) -> Any:
        # Python asks for __path__, __wrapped__ and the like to learn what a thing is: that it has none.
        if _is_special(name):
            raise AttributeError(name)
        found = _stub_class(f"{self.__name__}.{name}", self._stubs)
        # The same class each time, so that isinstance means something.
        setattr(self, name, found)
        self._stubs.asked(f"{self.__name__}.{name}")
        return found


class _StubClass(type):
    """The class of stub classes: what is done with one of them at import."""

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
        return cls

    def __ror__(cls, other: object) -> Any:
        return cls


def _stub_class(path: str, stubs: Stubs) -> Any:
    def init(_self: object, *_: object, **__: object) -> None:
        stubs.asked(f"{path}()")

    def call(_self: object, *arguments: object, **__: object) -> object:
        # A decorator made with arguments gives back what it decorates.
        return arguments[0] if arguments else None

    return _StubClass(
        path.rpartition(".")[2], (), {"__module__": path, "_stubs": stubs, "__init__": init, "__call__": call}
    )


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
