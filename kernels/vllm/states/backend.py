"""A recurrent layer of a release of vLLM, or of a source tree: its own planning, on native kernels."""

from typing import Any

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.planned_states import PlannedStates
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.vllm.backends import absent
from attnfuzz.kernels.vllm.project import VLLM
from attnfuzz.kernels.vllm.states.kinds import STATE_KINDS
from attnfuzz.reference.recurrent.case import StateCase


def planned_states(named: Named) -> PlannedStates:
    """Return the recurrent layer of a release, whose kind is that of `named`."""
    kind = STATE_KINDS[named.kind]
    return PlannedStates(named, kind.kernels, kind.capability, absent, _open)


def _open(backend: PlannedStates, case: StateCase, bench: Bench) -> Any:
    # These modules need a release's packages.
    from attnfuzz.kernels.vllm.loader import load  # noqa: PLC0415
    from attnfuzz.kernels.vllm.states.session import PlannedStateSession  # noqa: PLC0415

    loaded = load(release_of(VLLM, backend.named.release))
    return PlannedStateSession(backend, loaded, STATE_KINDS[backend.named.kind], case, bench)
