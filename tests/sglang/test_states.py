"""Recurrent layers of releases: pools hand out slots, hybrid backends plan, and accepted drafts are committed."""

import pytest
from msgspec.structs import replace
from packaging.version import Version

from attnfuzz.harness.reported.bugs import load_bugs
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.kernels.sglang.states.kinds import STATE_KINDS
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recurrent.case import PaddedRow, StateCase, StateMode, StateOp, StateRow, StateShape, StateStep

pytestmark = pytest.mark.sglang

BUGS = {
    bug.name: bug
    for bug in load_bugs()
    if bug.release.startswith("sglang") and isinstance(bug.case_in_release, StateCase)
}

PROMPT = StateStep(
    mode=StateMode.PREFILL,
    rows=(StateRow(lane=0, tokens=66, initial=False), StateRow(lane=1, tokens=1, initial=False)),
)
LIFE = (
    PROMPT,
    StateStep(mode=StateMode.PREFILL, rows=(StateRow(lane=0, tokens=5),), padding=1),
    StateStep(mode=StateMode.VERIFY, rows=(StateRow(lane=1, tokens=3), StateRow(lane=0, tokens=3))),
    StateStep(mode=StateMode.VERIFY, rows=(StateRow(lane=0, tokens=3, accepted=2),), padding=2, replayed=True),
)
"""Prompts, a chunk, drafts of both requests, and of one after two accepted tokens in a graph."""


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        (name, version)
        for name, kind in STATE_KINDS.items()
        for version in ("0.5.14", "0.5.23")
        if Version(version) >= kind.since
    ],
)
def test_prompts_drafts_and_commits_are_right(kind: str, version: str, runner: Runner) -> None:
    can = STATE_KINDS[kind].capability
    convolves = can.op is StateOp.CONV
    heads, key_dim = (1, 1) if convolves else (2, 8)
    shape = StateShape(heads=heads, value_heads=heads, key_dim=key_dim, value_dim=8)
    verdict = runner.verdict(
        StateCase(
            backend=f"sglang=={version}:{kind}",
            op=can.op,
            shape=shape,
            steps=LIFE,
            dtype=DType.BFLOAT16,
            state_dtype=DType.BFLOAT16,
            drafts=2,
            normed=can.normed[0],
            activated=can.activated[0],
            padded_row=PaddedRow.DUMMY,
        )
    )
    assert verdict.unsupported is None
    assert verdict.failures == ()


@pytest.mark.parametrize("name", BUGS)
def test_a_report_fails_in_the_release_that_had_it_and_passes_in_the_one_that_fixed_it(
    name: str, runner: Runner
) -> None:
    bug = BUGS[name]
    case = bug.case_in_release
    assert isinstance(case, StateCase)
    found = [runner.verdict(case) for _ in range(5)]
    assert any(failure.kind in bug.kinds for verdict in found for failure in verdict.failures)
    if not bug.release_after:
        return
    after = runner.verdict(replace(case, backend=bug.release_after))
    assert (after.failures, after.unsupported) == ((), None)
