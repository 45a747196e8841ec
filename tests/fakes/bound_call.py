"""Stands for a launch: binds a call to the installed FlashInfer's signature without making it."""

from collections.abc import Mapping
from typing import Any

from attnfuzz.kernels.gpu import flashinfer_op


def bind(module: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What of `arguments` the installed function takes. `name` may be a class's, or a method's like Wrapper.plan.

    Raises:
        Unsupported: as `flashinfer_op.call`.
        TypeError: an argument that it needs is missing.

    """
    function = flashinfer_op._resolved(module, name)
    taken = flashinfer_op._taken(flashinfer_op._parameters(function), name, arguments)
    flashinfer_op._signature(function).bind(**taken)
    return taken


def bind_positions(module: str, name: str, *arguments: Any) -> None:
    """Check that the installed function takes these by position.

    Raises:
        TypeError: it does not.
        Unsupported: there is no such function.

    """
    flashinfer_op._signature(flashinfer_op._resolved(module, name)).bind(*arguments)
