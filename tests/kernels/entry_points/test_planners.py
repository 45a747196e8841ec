"""What planners ask of kernels: correct ones break no precondition, revisions the one that their report is about."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from recorder import Recorder
from small_cases import HEADS, LATENTS, drawn, lighter, step

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.inside.launcher import JournalingLauncher, LaunchError
from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.kernels.interface.backend import Bench, Op
from attnfuzz.kernels.meaning.entry_point import Breach
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.reference.case import Case, Launch, Mode


class NotMade(Exception):
    """A call is inspected only."""


@dataclass(kw_only=True)
class Inspector(Recorder):
    """A Tracer that looks at each call, and stops before the first that is wrong, or before any call of a revision."""

    makes_none: bool
    seen: set[tuple[str, str]] = field(default_factory=set)
    breaches: tuple[Breach, ...] = ()
    mode: str = ""

    def begin_step(self, index: int, mode: str, *, related: bool = False) -> None:
        self.mode = mode

    def launch(self, op: Op, arguments: dict[str, Any]) -> None:
        entry = ENTRY_POINTS.get(op.name)
        if entry is None:
            return
        self.seen.add((op.name, self.mode))
        self.breaches = entry.breaches(arguments)
        if self.breaches or self.makes_none:
            raise NotMade


Inspect = Callable[[Case], Inspector]


@pytest.fixture
def inspect(bench_of: Callable[..., Bench]) -> Inspect:
    """Runs a case on its backend, each call inspected first."""

    def run(case: Case) -> Inspector:
        # A wild access would end the tests as well.
        inspector = Inspector(makes_none="@" in case.backend)
        bench = bench_of(case, inspector)
        assert isinstance(bench.launcher, JournalingLauncher)
        session = resolve(case.backend).open(case, bench)
        for index, each in enumerate(case.steps):
            bench.launcher.begin_step(index, each.mode.value)
            try:
                session.forward(index)
            except LaunchError as error:
                if not isinstance(error.__cause__, NotMade):
                    raise
                break
        return inspector

    return run


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["trtllm_mha", "trtllm_mla"])
def test_no_call_of_a_correct_planner_breaks_a_precondition(inspect: Inspect, backend: str) -> None:
    seen = set()
    for case in lighter(drawn(backend, 40)):
        inspector = inspect(case)
        assert not inspector.breaches
        seen |= inspector.seen
    assert {mode for _, mode in seen} == {mode.value for mode in Mode.of_kernels()}
    named = [NATIVE.decode, NATIVE.context] if backend == "trtllm_mha" else [NATIVE.mla_decode, NATIVE.ragged]
    assert {name for name, _ in seen} >= {op.name for op in named}


TEN_OF_TWELVE = step(Mode.DRAFT_EXTEND_V2, *((4, 6 + slot) for slot in range(10)), stride=4, rows=12)


@pytest.mark.parametrize(
    ("revision", "batch_from", "text"),
    [
        ("trtllm_mha@21649-before", {"batch_size"}, "batch_size is 12, but "),
        (
            "trtllm_mha@24566",
            {"query", "q_len_per_req"},
            "query has 48 rows at q_len_per_req 4, which is a batch of 12, but block_tables and seq_lens describe 10 ",
        ),
    ],
)
def test_a_draft_extend_padded_after_planning_has_a_batch_without_metadata(
    inspect: Inspect, revision: str, batch_from: set[str], text: str
) -> None:
    case = Case(backend=revision, geometry=HEADS, steps=(TEN_OF_TWELVE,))
    first = inspect(case).breaches[0]
    assert set(first.arguments) >= {"seq_lens", "block_tables"} | batch_from
    assert first.request == 10
    assert first.text.startswith(text)
    assert not inspect(msgspec.structs.replace(case, backend="trtllm_mha")).breaches


def test_a_replay_planned_for_accepted_lengths_has_a_length_below_zero_for_its_padding(inspect: Inspect) -> None:
    capture = step(Mode.DRAFT_EXTEND, stride=4, rows=3, launch=Launch.CAPTURE)
    replay = step(Mode.DRAFT_EXTEND, (1, 9), (1, 12), stride=4, rows=3, launch=Launch.REPLAY)
    case = Case(backend="trtllm_mla@21987-before", geometry=LATENTS, steps=(capture, replay))
    first = inspect(case).breaches[0]
    assert first.arguments == ("seq_lens",)
    assert first.request == 2
    assert not inspect(msgspec.structs.replace(case, backend="trtllm_mla")).breaches
