"""The search for planted defects: a trial campaign, and each defect's outcome from where it stands."""

import msgspec

from attnfuzz.harness.campaign.events import FindingFiled
from attnfuzz.harness.campaign.schedule import missing
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.kernels.defects.catalogue import backend_name
from attnfuzz.kernels.defects.defect import Defect

_CATCHES = {
    "guards": (Kind.ILLEGAL_ACCESS, Kind.MISALIGNED, Kind.CANARY_OVERWRITTEN, Kind.INPUT_MUTATED),
    "exception": (Kind.RAISED, Kind.UNEXPECTED_REJECTION),
    "watchdog": (Kind.HANG,),
    "worker": (Kind.WORKER_DIED,),
    "contract": (Kind.CONTRACT_BROKEN,),
    "sanitizer": (Kind.RACE, Kind.BARRIER_MISUSED, Kind.UNINITIALIZED_READ),
}


def killer(observation: Observation) -> str:
    """Name the catcher of a failure: a tier of the judge, or a name in `_CATCHES`."""
    return observation.tier or next(name for name, kinds in _CATCHES.items() if observation.kind in kinds)


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """How a defect was killed: `by` which `killer`, and as which failure; `also` are other killers of the same case."""

    by: str
    kind: Kind
    place: str
    mode: str
    also: tuple[str, ...]


class SearchOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a defect's search, after this many examples and seconds, confirmation included.

    `kill` is None for a survivor. `unconfirmed` counts failures that did not come back in a fresh worker.
    """

    defect: str
    seed: int
    examples: int
    seconds: float
    unconfirmed: int
    kill: Kill | None


def filed_for(defect: Defect, standing: Standing) -> FindingFiled | None:
    """Return the failure that ended the search for `defect`; None if none did so far."""
    backend = backend_name(defect)
    return next((each for each in standing.filed if each.fingerprint.backend == backend), None)


def is_over(defect: Defect, standing: Standing) -> bool:
    """Return whether the search for `defect`, which has no slice now, has found a failure or spent its examples."""
    assert standing.started is not None
    tally = standing.score(backend_name(defect)).tally
    spent = not missing(standing.started.examples or 0, tally.searched, tally.unsupported)
    return spent or filed_for(defect, standing) is not None


def outcome_of(defect: Defect, standing: Standing) -> SearchOutcome:
    """Sum up the search for `defect` in a trial."""
    assert standing.started is not None
    backend = backend_name(defect)
    score, filed = standing.score(backend), filed_for(defect, standing)
    return SearchOutcome(
        defect=defect.name,
        seed=standing.started.seed,
        examples=score.tally.searched,
        seconds=round(score.seconds, 3),
        unconfirmed=sum(each.fingerprint.backend == backend for each in standing.unconfirmed),
        kill=None if filed is None else _kill(filed),
    )


def _kill(filed: FindingFiled) -> Kill:
    seen = filed.observation
    by = killer(seen)
    others = {killer(each) for each in filed.others} - {by}
    return Kill(by=by, kind=seen.kind, place=seen.place, mode=seen.mode, also=tuple(sorted(others)))
