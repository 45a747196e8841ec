"""Fingerprints, the identity of bugs: a coarse one before shrinking, a fine one after it."""

import hashlib
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from attnfuzz.harness.verdict.failures import FAULTS, Kind, Observation
from attnfuzz.reference.case import (
    Case,
    Interleave,
    Launch,
    Magnitude,
    Mask,
    Mode,
    Pace,
    Pages,
    Request,
    Scales,
    SharedKeys,
    Step,
    Views,
    Workspace,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.relation import Relation

WRONG = frozenset({Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH, Kind.NOT_FINITE, Kind.UNWRITTEN})
"""Kinds that differ only in the stray numbers that a kernel read or left: another request's, zeros, NaN."""


class Fingerprint(msgspec.Struct, frozen=True):
    """The coarse fingerprint: a failure's properties before its case is shrunk."""

    backend: str
    kind: Kind
    kernel: str
    mode: str
    place: str

    @classmethod
    def of(cls, backend: str, observation: Observation) -> "Fingerprint":
        """Return the fingerprint of one failure of `backend`."""
        return cls(backend, observation.kind, observation.kernel, observation.mode, observation.place)

    @property
    def anywhere(self) -> "Fingerprint":
        """The fingerprint without the place for a fault, since a wild access hits by chance. Others are unchanged."""
        return replace(self, place="") if self.kind in FAULTS else self

    def among(self, failures: Iterable[Observation]) -> Observation | None:
        """Return the first failure of the same backend with this fingerprint, a fault at any place, or None."""
        wanted = self.anywhere
        return next((each for each in failures if Fingerprint.of(self.backend, each).anywhere == wanted), None)

    def wrong_among(self, failures: Iterable[Observation]) -> Observation | None:
        """Return the first failure as `among` does, but all kinds in `WRONG` count as one."""
        alike = WRONG if self.kind in WRONG else {self.kind}
        return self.among(replace(each, kind=self.kind) for each in failures if each.kind in alike)


def fine(case: Case, observation: Observation) -> str:
    """Return ten hex digits that are equal for shrunk cases that fail alike: backend, kind, kernel and features.

    The place is left out, because it is chance whether a kernel runs past the keys or the queries first, and so are
    lengths: a bug of 100 keys and more is found again with 101.
    """
    traits = (each for each in features(case) if each != _FULL_PAGE)
    parts = (case.backend, observation.kind, observation.kernel, *traits)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def features(case: Case) -> tuple[str, ...]:
    """Return the special features of `case` in words, in a fixed order. A shrunk case needs each of them to fail."""
    modes = dict.fromkeys(step.mode.value for step in case.steps)
    traits = (trait for trait, present in _TRAITS.items() if present(case))
    relation = () if case.relation is None else (case.relation.words,)
    return (*modes, *traits, *relation)


def _some_step(present: Callable[[Step], bool]) -> Callable[[Case], bool]:
    return lambda case: any(present(step) for step in case.steps)


def _asking(step: Step) -> list[Request]:
    return [request for request in step.requests if request.q_len]


_FULL_PAGE = "full last page"

_TRAITS: dict[str, Callable[[Case], bool]] = {
    "several steps": lambda case: len(case.steps) > 1,
    "replayed": _some_step(lambda step: step.launch is Launch.REPLAY),
    "padded": _some_step(lambda step: step.padded),
    "several requests": _some_step(lambda step: len(step.requests) > 1),
    "ragged": _some_step(lambda step: len({request.q_len for request in step.requests}) > 1),
    "empty kv": _some_step(lambda step: any(request.kv_len == 0 for request in _asking(step))),
    "kv < q": _some_step(lambda step: any(0 < request.kv_len < request.q_len for request in _asking(step))),
    # Pages of one token are always full.
    _FULL_PAGE: lambda case: (
        case.geometry.page_size > 1
        and any(
            each.kv_len and not each.kv_len % case.geometry.page_size for step in case.steps for each in step.requests
        )
    ),
    "idle request": _some_step(lambda step: len(_asking(step)) < len(step.requests)),
    "fp8 kv": lambda case: case.geometry.kv_dtype is DType.FLOAT8_E4M3,
    "window": lambda case: case.geometry.window_left >= 0,
    "full mask": lambda case: case.mask is Mask.FULL,
    "tree": lambda case: case.mask is Mask.TREE,
    "custom mask": lambda case: case.mask is Mask.CUSTOM,
    "mask with empty rows": lambda case: case.mask is Mask.EMPTY_ROWS,
    "sinks": lambda case: case.geometry.sinks,
    "soft cap": lambda case: case.geometry.soft_cap != 0,
    "magnitude": lambda case: case.magnitude is not Magnitude.PLAIN,
    "scaled": lambda case: case.scales != Scales(),
    "query scale": lambda case: case.queries.scale != 1,
    "kept queries": lambda case: case.queries.kept,
    "four ranks": lambda case: case.shared_keys.ranks > SharedKeys().ranks,
    "interleave": lambda case: case.shared_keys.interleave is not Interleave.TOKEN,
    "all to all": lambda case: case.shared_keys.all_to_all,
    "views": lambda case: case.views != Views(),
    "pages": lambda case: case.pages != Pages(),
    "max slack": lambda case: case.max_len_slack > 0,
    "argument forms": lambda case: bool(case.arguments),
    "life": lambda case: bool(case.life),
    "asynchronous": lambda case: case.serving.asynchronous,
    "late device": lambda case: case.pace is Pace.LATE,
    "used workspace": lambda case: case.workspace is not Workspace.FRESH,
}

FEATURES = (*(mode.value for mode in Mode), *_TRAITS, *(relation.words for relation in Relation))
"""All words that `features` can return."""
