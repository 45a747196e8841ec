"""A recorded call as its entry point understands it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnfuzz.harness.dumps.pictured import pictured
from attnfuzz.harness.dumps.recorded import DumpError, RecordedCall
from attnfuzz.kernels.entry_points import Breach, Parameter, RequestSpan
from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS


@dataclass(frozen=True)
class Understood:
    """A call with its arguments as `pictured` gives them, its tensors by name, its requests, and what it breaks."""

    call: RecordedCall
    given: Mapping[str, Any]
    parameters: Mapping[str, Parameter]
    spans: tuple[RequestSpan, ...]
    breaches: tuple[Breach, ...]


def understood(call: RecordedCall) -> Understood:
    """What a call asks for. Raises DumpError if its function is not known, or can't have such arguments."""
    entry = ENTRY_POINTS.get(call.function)
    if entry is None:
        raise DumpError(f"{call.folder}: what {call.function} takes is not known, only {', '.join(ENTRY_POINTS)}")
    given = pictured(call)
    try:
        parameters, spans = entry.parameters(given), entry.spans(given)
    except ValueError as error:
        raise DumpError(f"{call.folder}: {call.function}: {error}; import another call") from error
    return Understood(
        call, given, {parameter.name: parameter for parameter in parameters}, spans, entry.breaches(given)
    )


def breaches_of(call: RecordedCall) -> tuple[Breach, ...]:
    """The preconditions that a call breaks, as it was recorded; none for a function that is not known.

    Raises DumpError.
    """
    entry = ENTRY_POINTS.get(call.function)
    return () if entry is None else entry.breaches(pictured(call))
