"""Positional arguments by their names: a dump numbers them, and says them apart by the signature that it quotes."""

import importlib
import inspect
from dataclasses import dataclass

from attnfuzz.harness.dumps.recorded import DumpError
from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.kernels.native.ops import NATIVE


@dataclass(frozen=True)
class Positional:
    """The parameters that take positional arguments, in order; `rest` is the one that takes all further ones."""

    names: tuple[str, ...]
    rest: str | None = None

    def name(self, index: int) -> str | None:
        """The name of the argument at this position, None if there is none."""
        if index < len(self.names):
            return self.names[index]
        return None if self.rest is None else f"{self.rest}[{index - len(self.names)}]"


def positional(function: str, recorded: str) -> Positional:
    """The parameters of a function whose signature a dump gives as the text `recorded`, which may be missing.

    Then those of the installed FlashInfer's function are taken, or of the native kernel of that name. What the dump
    names is neither evaluated nor imported.

    Raises:
        DumpError: none of them is there.

    """
    found = parse(recorded) or _installed(function) or _native(function)
    if found is None:
        raise DumpError(
            f"the arguments of {function} can't be named: the dump has no function_signature; install the "
            "flashinfer-python that wrote it, or dump anew with a later one"
        )
    return found


def parse(signature: str) -> Positional | None:
    """The positional parameters in a signature as `inspect` prints it, None if the text is no signature."""
    names: list[str] = []
    parameters = _split(signature)
    if parameters is None:
        return None
    for parameter in parameters:
        name = parameter.split(":", 1)[0].split("=", 1)[0].strip()
        if name.startswith("*"):
            # Behind it are keywords alone.
            return Positional(tuple(names), name[1:] if name[1:].isidentifier() else None)
        if name.isidentifier():
            names.append(name)
        elif name != "/":
            return None
    return Positional(tuple(names))


def _split(signature: str) -> list[str] | None:
    """The texts between the commas of the outermost parentheses; annotations and defaults may hold more of either."""
    found, begin, depth, quote, escaped = [], 1, 0, "", False
    for index, char in enumerate(signature):
        if quote:
            if char == quote and not escaped:
                quote = ""
            escaped = char == "\\" and not escaped
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}" or (char == "," and depth == 1):
            depth -= char != ","
            if depth == 0 or char == ",":
                found.append(signature[begin:index].strip())
                begin = index + 1
            if depth == 0:
                return [text for text in found if text] if signature.startswith("(") else None
    return None


def _installed(function: str) -> Positional | None:
    """What the installed FlashInfer's function of this name takes, if it is there and one that we know."""
    known = ENTRY_POINTS.get(function)
    if known is None or known.module is None:
        return None
    try:
        return parse(str(inspect.signature(getattr(importlib.import_module(known.module), function))))
    except (ImportError, AttributeError, OSError, RuntimeError):  # an installation may be broken in many ways
        return None


def _native(function: str) -> Positional | None:
    kernel = next((op.function for op in NATIVE.ops() if op.name == function), None)
    return None if kernel is None else parse(str(inspect.signature(kernel)))
