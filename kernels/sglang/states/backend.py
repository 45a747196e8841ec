"""A recurrent layer of a release of SGLang, or of a source tree: its own planning, on native kernels."""

from typing import Any

from attnfuzz.kernels.interface.backend import Bench, Unsupported
from attnfuzz.kernels.libraries.interpreted import no_interpreter
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.planned_states import PlannedStates
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.sglang.backends import absent
from attnfuzz.kernels.sglang.project import SGLANG
from attnfuzz.kernels.sglang.states.kinds import STATE_KINDS
from attnfuzz.reference.recurrent.case import StateCase


def planned_states(named: Named) -> PlannedStates:
    """Return the recurrent layer of a release, whose kind is that of `named`."""
    kind = STATE_KINDS[named.kind]
    return PlannedStates(named, kind.kernels, kind.capability, lambda: absent() or no_interpreter(), _open)


def _open(backend: PlannedStates, case: StateCase, bench: Bench) -> Any:
    # These modules need a release's packages.
    from attnfuzz.kernels.sglang.loader import load  # noqa: PLC0415
    from attnfuzz.kernels.sglang.states.session import SglangStateSession  # noqa: PLC0415

    kind, loaded = STATE_KINDS[backend.named.kind], load(release_of(SGLANG, backend.named.release))
    if loaded.release.version < kind.since:
        raise Unsupported(f"this layer of SGLang before {kind.since}")
    if loaded.release.version < kind.padded_since and any(step.padding and not step.replayed for step in case.steps):
        raise Unsupported(f"padding outside of graphs in front of this layer of SGLang before {kind.padded_since}")
    return SglangStateSession(backend, loaded, kind, case, bench)
