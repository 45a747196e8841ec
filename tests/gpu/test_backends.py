"""Every backend that runs on this GPU: drawn cases pass or are known to fail, and guards see what kernels do wrong."""

from pathlib import Path

import msgspec
import pytest
import stray_backend
from built_backends import WITHOUT_BUGS, skip_unless_built
from small_cases import drawn

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.ledger.file import DEFAULT_NAME, Ledger
from attnfuzz.harness.reported.bugs import Bug, load_bugs
from attnfuzz.harness.sandbox.check import Runner, render_failure
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case, Guard, Launch

pytestmark = pytest.mark.gpu

CASES, REPLAYS, ENOUGH = 30, 3, 400


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    """What is known, as docs/findings tells."""
    path = Path(__file__).parents[2] / DEFAULT_NAME
    return Ledger.load(path) if path.exists() else Ledger()


@pytest.fixture(params=WITHOUT_BUGS)
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend in turn; one that can't run here is skipped, and says why."""
    name: str = request.param
    skip_unless_built(name)
    return name


def check(runner: Runner, ledger: Ledger, case: Case) -> bool:
    """Judge a case, and tell whether the backend supports it.

    Its worst failure has to be in the ledger, as a campaign has it: the rest may follow from that.
    """
    verdict = runner.verdict(case)
    if verdict.failures:
        worst = Fingerprint.of(case.backend, verdict.failures[0])
        assert ledger.reason(worst, case) is not None, render_failure(case, verdict)
    return verdict.unsupported is None


def test_drawn_cases_pass_or_are_known(backend: str, runner: Runner, ledger: Ledger) -> None:
    supported = [check(runner, ledger, case) for case in drawn(backend, CASES)]
    # A module that does not compile makes every case an unsupported one.
    assert any(supported)


def test_graphs_replay(backend: str, runner: Runner, ledger: Ledger) -> None:
    if not resolve(backend).capability.graph_modes:
        pytest.skip(f"{backend} has no graphs")
    replaying = [case for case in drawn(backend, ENOUGH) if any(step.launch is Launch.REPLAY for step in case.steps)]
    assert len(replaying) >= REPLAYS
    for case in replaying[:REPLAYS]:
        check(runner, ledger, case)


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("astray", ["cuda_fixup", "hopper:trtllm_mha"])
def test_an_access_behind_any_tensor_of_a_launch_is_seen(astray: str, number: int, runner: Runner) -> None:
    skip_unless_built(astray)
    plain = next(
        case
        for case in drawn(astray, ENOUGH)
        if case.relation is None
        and len(case.steps) == 1
        and case.steps[0].launch is Launch.EAGER
        and case.steps[0].tokens
    )
    for write, guard, kind in (
        (False, Guard.RIGHT, Kind.ILLEGAL_ACCESS),
        (True, Guard.LEFT, Kind.CANARY_OVERWRITTEN),
    ):
        name = f"{stray_backend.__file__}:{stray_backend.attribute_of(astray, number, write=write)}"
        verdict = runner.verdict(msgspec.structs.replace(plain, backend=name, guard=guard))
        assert [failure.kind for failure in verdict.failures] == [kind], render_failure(plain, verdict)


@pytest.mark.parametrize(
    "bug", [bug for bug in load_bugs() if bug.reproduced and not bug.backend_after], ids=lambda bug: bug.name
)
def test_a_reported_bug_of_a_real_kernel_fails_as_reported(bug: Bug, runner: Runner) -> None:
    skip_unless_built(bug.backend_before)
    verdict = runner.verdict(bug.case_before)
    assert verdict.failures
    assert any(failure.kind in bug.kinds for failure in verdict.failures), render_failure(bug.case_before, verdict)
