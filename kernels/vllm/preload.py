"""A release, imported before workers are forked, with the code that opens sessions: in no other process."""

from collections.abc import Sequence
from contextlib import suppress

from attnfuzz.kernels.cuda.visible import no_gpu_visible
from attnfuzz.kernels.releases.errors import ReleaseError
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.vllm import session
from attnfuzz.kernels.vllm.cpu.project import CPU_TEAM, VLLM_CPU
from attnfuzz.kernels.vllm.kinds import KINDS, BackendKind
from attnfuzz.kernels.vllm.loader import ASYNC_SCHEDULER, SCHEDULER, as_kind, load
from attnfuzz.kernels.vllm.project import ON_CPU, ON_HOPPER, VLLM
from attnfuzz.kernels.vllm.serving import drafting_session
from attnfuzz.kernels.vllm.sparse import session as sparse_session
from attnfuzz.kernels.vllm.sparse.kinds import SPARSE_KINDS, SparseKind

__all__ = ["drafting_session", "load_release", "load_release_for_hopper", "session", "sparse_session"]


def load_release_for_hopper(team: str) -> None:
    """Import the release of a team for workers that get a Hopper GPU. Raises ReleaseError."""
    with no_gpu_visible():
        loaded = load(release_of(VLLM, team), hopper=True)
        for kind in ON_HOPPER:
            with suppress(ReleaseError):
                as_kind(loaded, KINDS[kind])


def load_release(team: str) -> None:
    """Import the release of a team (vllm==VERSION or vllm@PATH, or one of them with :cpu), before workers are forked.

    Importing it takes seconds. Raises ReleaseError.
    """
    if team.endswith(CPU_TEAM):
        loaded = load(release_of(VLLM_CPU, team.removesuffix(CPU_TEAM)), ON_CPU[0])
    else:
        loaded = load(release_of(VLLM, team))
    kinds: Sequence[BackendKind | SparseKind] = (*KINDS.values(), *SPARSE_KINDS.values())
    for kind in (each for each in kinds if each.on_cpu == loaded.kind.on_cpu):
        # A missing one fails when it is used.
        with suppress(ReleaseError):
            as_kind(loaded, kind)
    # If it is missing, other kinds can still run.
    with suppress(ReleaseError):
        loaded.module(SCHEDULER)
        loaded.module(ASYNC_SCHEDULER)
