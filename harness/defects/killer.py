"""What of the harness found a defect out."""

from attnfuzz.harness.verdict.failures import Kind, Observation

_CATCHES = {
    "guards": (Kind.ILLEGAL_ACCESS, Kind.MISALIGNED, Kind.CANARY_OVERWRITTEN, Kind.INPUT_MUTATED),
    "exception": (Kind.RAISED, Kind.UNEXPECTED_REJECTION),
    "watchdog": (Kind.HANG,),
    "worker": (Kind.WORKER_DIED,),
    "contract": (Kind.CONTRACT_BROKEN,),
}


def killer(observation: Observation) -> str:
    """A tier of the judge, or what else catches failures of this kind, by its name above."""
    return observation.tier or next(name for name, kinds in _CATCHES.items() if observation.kind in kinds)
