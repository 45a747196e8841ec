"""Ops of the installed FlashInfer, imported at their first launch and bound to its signatures.

FlashInfer's functions gain arguments from one release to the next. A session's arguments are compared with the
installed signature (inspect.signature), so that an older release lacks features instead of failing.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attnfuzz.kernels.interface.backend import Op, Unsupported

_Function = Callable[..., Any]


@functools.cache
def flashinfer_op(module: str, name: str, writes: frozenset[str]) -> Op:
    """Make an op of the function `name` of FlashInfer's `module`; a launch may write the arguments in `writes`.

    An argument that the installed release lacks is left out if it is None, the default of FlashInfer's own optional
    arguments. Otherwise the launch raises Unsupported, as it does for a missing function.
    """
    return Op(name, functools.partial(call, module, name), writes, module)


def call(module: str, name: str, /, **arguments: Any) -> Any:
    """Call the installed function, or create an object of the class, with the `arguments` that it takes.

    Raises:
        Unsupported: the installed release has no such function, or lacks an argument that is not None.

    """
    function = _resolved(module, name)
    return function(**_taken(_parameters(function), name, arguments))


def call_method(receiver: Any, name: str, /, *positional: Any, **arguments: Any) -> Any:
    """Call a method of a FlashInfer object, such as a wrapper's plan, as `call` does.

    `positional` are its first parameters, and those of a kernel that has more than the method.

    Raises:
        Unsupported: as `call`.

    """
    kind: Any = type(receiver)
    if not hasattr(kind, name):
        raise Unsupported(f"flashinfer {version()}: {kind.__name__} has no method {name}")
    parameters = method_parameters(kind, name)
    names = None if parameters is None else frozenset(parameters)
    return getattr(receiver, name)(*positional, **_taken(names, f"{kind.__name__}.{name}", arguments))


def version() -> str:
    """Return the installed release, such as 0.7.2."""
    return str(importlib.import_module("flashinfer").__version__)


def _taken(names: frozenset[str] | None, called: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    taken, lacking = _divided(names, arguments)
    if lacking:
        raise Unsupported(f"flashinfer {version()}: {called} has no argument {', '.join(lacking)}")
    return taken


def accepted(function: _Function, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Divide arguments into those that a function has, and the names of those that it lacks, unless they are None."""
    return _divided(_parameters(function), arguments)


def _divided(names: frozenset[str] | None, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    if names is None or arguments.keys() <= names:
        return dict(arguments), []
    lacking = [argument for argument, value in arguments.items() if argument not in names and value is not None]
    return {argument: value for argument, value in arguments.items() if argument in names}, lacking


@functools.cache
def _parameters(function: _Function) -> frozenset[str] | None:
    """Return the names of a function's parameters; None if it takes any."""
    parameters = _signature(function).parameters.values()
    return None if _takes_any(parameters) else frozenset(_by_name(parameters))


@functools.cache
def method_parameters(kind: type, name: str) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a method, with those of an overridden method that it passes **kwargs to.

    None if it takes any.
    """
    found: dict[str, inspect.Parameter] = {}
    for each in kind.__mro__:
        if name in vars(each):
            parameters = _signature(getattr(each, name)).parameters.values()
            found = {**_by_name(parameters), **found}
            if not _takes_any(parameters):
                return found
    return None


def _takes_any(parameters: Iterable[inspect.Parameter]) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _by_name(parameters: Iterable[inspect.Parameter]) -> dict[str, inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {parameter.name: parameter for parameter in parameters if parameter.kind in kinds}


@functools.cache
def _signature(function: _Function) -> inspect.Signature:
    """Return the signature without a method's `self`. FlashInfer's decorators preserve signatures (functools.wraps)."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].name == "self":
        signature = signature.replace(parameters=parameters[1:])
    return signature


@functools.cache
def _resolved(module: str, name: str) -> _Function:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (AttributeError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and not module.startswith(error.name or module):
            # FlashInfer's module exists, but lacks a dependency.
            raise
        raise Unsupported(f"flashinfer {version()} has no {module}.{name}") from error
    function: _Function = found
    return function
