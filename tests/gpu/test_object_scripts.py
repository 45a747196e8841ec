"""Findings of FlashInfer's classes on this GPU: each has a script that calls the classes and shows the failure."""

from pathlib import Path

import misplanned_backend
import pytest
from built_backends import WITHOUT_BUGS, skip_unless_built
from msgspec.structs import replace
from small_cases import drawn

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.export import Exporter, Target
from attnfuzz.harness.export.proof import prove
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.kernels.gpu.catalogue import GPU_BACKENDS
from attnfuzz.reference.case import Case, Launch

pytestmark = pytest.mark.gpu

OBJECTS = [
    backend.name
    for backend in GPU_BACKENDS
    if backend.name in WITHOUT_BUGS and any(op.library and op.library.makes for op in backend.kernels)
]
_ENOUGH, _TRIES, _SECONDS = 400, 8, 300


@pytest.mark.parametrize("launch", [Launch.EAGER, Launch.REPLAY])
@pytest.mark.parametrize("name", OBJECTS)
def test_a_wrong_plan_has_a_script_that_shows_it(name: str, launch: Launch, runner: Runner) -> None:
    skip_unless_built(name)
    if launch is Launch.REPLAY and not resolve(name).capability.graph_modes:
        pytest.skip(f"{name} has no graphs")
    path = Path(misplanned_backend.__file__)
    cases = (
        case
        for case in drawn(name, _ENOUGH)
        if case.relation is None and case.steps[-1].launch is launch and case.steps[-1].tokens
    )
    for case, _ in zip(cases, range(_TRIES), strict=False):
        wrong = replace(case, backend=f"{path}:{misplanned_backend.attribute_of(name)}", past=())
        if _shown(wrong, runner):
            return
    pytest.fail(f"no script of {_TRIES} cases shows it")


def _shown(case: Case, runner: Runner) -> bool:
    """Whether a case fails; its script has to."""
    exporter = Exporter(case, runner)
    if exporter.seen is None:
        return False
    proof = prove(exporter.script(Target.FLASHINFER), _SECONDS)
    assert proof.shows, f"{exporter.seen.message}\n{proof.obstacle}\n{proof.printed}"
    return True
