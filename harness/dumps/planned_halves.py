"""The runs of FlashInfer's POD wrappers: a prefill and decodes in one launch, each with an output of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from attnfuzz.harness.dumps.planned_run import PACKED, PlannedRun
from attnfuzz.kernels.meaning import Parameter, RequestSpan
from attnfuzz.kernels.meaning.forms import parameters_of

_NOT_OF: Final[Mapping[str, frozenset[str]]] = {
    # Factors of the decodes alone.
    "_p": frozenset({"q_scale", "k_scale", "v_scale"}),
    # Options of a run that its plan overrides: flashinfer/pod.py, docstring of PODWithPagedKVCacheWrapper.run.
    "_d": frozenset(
        f"{name}_d"
        for name in ("kv_layout", "sm_scale", "window_left", "causal", "pos_encoding_mode", "rope_scale", "rope_theta")
    ),
}
"""Arguments that a half does not read, by its suffix."""


@dataclass(frozen=True, kw_only=True)
class PlannedHalf(PlannedRun):
    """The prefills or the decodes of a run, on pages: arguments with one suffix, "_p" or "_d", and those without."""

    suffix: str

    def own(self, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of this half, and those of both."""
        other = "_d" if self.suffix == "_p" else "_p"
        return {
            name.removesuffix(self.suffix): value
            for name, value in known.items()
            if not name.endswith(other) and name not in _NOT_OF[self.suffix]
        }


@dataclass(frozen=True)
class PlannedPrefill(PlannedRun):
    """The only prefill of a run, of packed keys: it reads nothing of the plan, which is that of the decodes."""

    indptr: str = ""
    causal: bool = False

    def own(self, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments with the suffix `_p`."""
        return {name.removesuffix("_p"): value for name, value in known.items() if name.endswith("_p")}

    def parameters(self, arguments: Mapping[str, Any]) -> tuple[Parameter, ...]:
        """Return the tensors of the prefill. Raises ValueError for impossible ones."""
        return parameters_of(arguments, PACKED, ("query", "key", "value", "out"))

    def spans(self, arguments: Mapping[str, Any]) -> tuple[RequestSpan, ...]:
        """Return the only request."""
        return (RequestSpan(0, len(arguments["query"]), len(arguments["key"])),)


@dataclass(frozen=True, kw_only=True)
class PlannedHalves(PlannedRun):
    """A run whose halves are judged one by one."""

    indptr: str = ""
    prefill: PlannedRun
    decode: PlannedRun

    def parts(self, known: Mapping[str, Any]) -> tuple[PlannedRun, ...]:
        """Return the prefill and the decodes."""
        return self.prefill, self.decode
