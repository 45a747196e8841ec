"""What FlashInfer's entry points take in each version: calls are bound as the version would that a release pins.

Read from the released wheels by read_signatures.py, so that no FlashInfer has to be installed.
"""

import ast
import inspect
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from packaging.version import Version

_FILE: Final = Path(__file__).with_name("signatures.json")


@cache
def signatures(flashinfer: Version | None) -> Mapping[str, inspect.Signature]:
    """The signature of each function in this version, or in the last known one before it; None asks for the newest.

    A version before the first that is known gets the first.
    """
    known = sorted((Version(name), functions) for name, functions in json.loads(_FILE.read_text()).items())
    _, functions = max((each for each in known if flashinfer is None or each[0] <= flashinfer), default=known[0])
    return {name: _signature(parameters) for name, parameters in functions.items()}


def bind(signature: inspect.Signature, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
    """A call's arguments by name, defaults included. TypeError as the function itself would raise it."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _signature(parameters: str) -> inspect.Signature:
    """A signature as the file has it; its defaults are literals."""
    given = ast.parse(f"def function({parameters}): ...").body[0]
    assert isinstance(given, ast.FunctionDef)
    names = given.args.args
    defaults = [inspect.Parameter.empty] * (len(names) - len(given.args.defaults))
    values = [*defaults, *(ast.literal_eval(default) for default in given.args.defaults)]
    return inspect.Signature(
        [
            *(
                inspect.Parameter(name.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=value)
                for name, value in zip(names, values, strict=True)
            ),
            *(
                inspect.Parameter(
                    name.arg,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if value is None else ast.literal_eval(value),
                )
                for name, value in zip(given.args.kwonlyargs, given.args.kw_defaults, strict=True)
            ),
        ]
    )
