"""What makes two failures the same bug: a coarse fingerprint before shrinking, a fine one after it."""

import hashlib

import msgspec
from msgspec.structs import replace

from attnfuzz.harness.failures import FAULTS, Kind, Observation
from attnfuzz.reference.case import Case, Launch, Pages, Scales, Step, Views, Workspace
from attnfuzz.reference.dtypes import DType


class Fingerprint(msgspec.Struct, frozen=True):
    """The coarse fingerprint: what can be told from a failure before its case is shrunk."""

    backend: str
    kind: Kind
    kernel: str
    mode: str
    place: str

    @classmethod
    def of(cls, backend: str, observation: Observation) -> "Fingerprint":
        """The fingerprint of one failure of `backend`."""
        return cls(backend, observation.kind, observation.kernel, observation.mode, observation.place)

    @property
    def anywhere(self) -> "Fingerprint":
        """The same for a fault at any place: where a wild access lands is chance. Other failures keep theirs."""
        return replace(self, place="") if self.kind in FAULTS else self


def fine(case: Case, observation: Observation) -> str:
    """Ten hex digits that are equal for shrunk cases that fail alike: same backend, kind, kernel and features.

    The place is left out: whether a kernel first runs past the keys or past the queries is chance.
    """
    parts = (case.backend, observation.kind, observation.kernel, *features(case))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def features(case: Case) -> tuple[str, ...]:
    """The words for what is special about `case`, in a fixed order. In a shrunk case each is needed to fail."""
    modes = dict.fromkeys(step.mode.value for step in case.steps)
    traits = {
        "several steps": len(case.steps) > 1,
        "replayed": any(step.launch is Launch.REPLAY for step in case.steps),
        **{trait: True for step in case.steps for trait in _traits_of_step(step)},
        "fp8 kv": case.geometry.kv_dtype is DType.FLOAT8_E4M3,
        "window": case.geometry.window_left >= 0,
        "sinks": case.geometry.sinks,
        "soft cap": case.geometry.soft_cap != 0,
        "scaled": case.scales != Scales(),
        "views": case.views != Views(),
        "pages": case.pages != Pages(),
        "max slack": case.max_len_slack > 0,
        "used workspace": case.workspace is not Workspace.FRESH,
    }
    relation = () if case.relation is None else (case.relation.words,)
    return (*modes, *(trait for trait, present in traits.items() if present), *relation)


def _traits_of_step(step: Step) -> tuple[str, ...]:
    asking = [request for request in step.requests if request.q_len]
    traits = {
        "padded": step.padded,
        "several requests": len(step.requests) > 1,
        "ragged": len({request.q_len for request in step.requests}) > 1,
        "empty kv": any(request.kv_len == 0 for request in asking),
        "kv < q": any(0 < request.kv_len < request.q_len for request in asking),
        "idle request": len(asking) < len(step.requests),
    }
    return tuple(trait for trait, present in traits.items() if present)
