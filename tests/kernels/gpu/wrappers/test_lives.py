"""Earlier uses of FlashInfer's objects: each is made, and only an object that keeps something fails."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recorder import Launched
from small_cases import passed, run, step
from torch.nn.attention import flex_attention

from attnfuzz.harness.backends.registry import load
from attnfuzz.kernels.arguments import lives
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.library_ops import own_workspaces
from attnfuzz.kernels.gpu.wrappers.backends import CAPPED, EIGHT_BITS, PLAIN, WINDOWED
from attnfuzz.kernels.gpu.wrappers.other_layers import other_layer, uses_of
from attnfuzz.kernels.interface.backend import Op, Unsupported
from attnfuzz.kernels.interface.library_call import OWN_INTEGERS
from attnfuzz.kernels.libraries.torch_attention import block_mask
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.case import Case, Mode, Scales

pytest.importorskip("flashinfer", reason="the fake wrappers take what the installed ones take")
import direct_on_cpu
import fake_wrappers
import wrapper_backends

U = EarlierUse
QUIET = {U.RESET, U.OVERWRITTEN, U.COPIED, U.CROPPED, U.OTHER_STREAM}
"""Uses without a launch of their own."""
WRONG = {"CASCADE_LEVELS_WINDOW"}
"""A window there ends at each level's own last key."""
LIVING = [
    f"{Path(str(each.__file__))}:{name}"
    for each in (wrapper_backends, direct_on_cpu)
    for name, backend in vars(each).items()
    if isinstance(backend, GpuBackend) and backend.capability.earlier_uses and name not in WRONG
]


def case_of(backend: str, *uses: EarlierUse, mode: Mode = Mode.DECODE) -> Case:
    """Two requests that every wrapper takes, after these uses."""
    can = load(backend).capability
    mode = mode if mode in can.modes else Mode.EXTEND
    q_len = 1 if mode is Mode.DECODE else 2
    made = Case(
        backend=backend,
        geometry=can.buckets[0].simplest,
        steps=(step(mode, (q_len, 40), (q_len, 21)),),
        scales=Scales(granularity=can.granularities[0]),
        life=uses,
    )
    assert can.why_not(made) is None
    return made


@pytest.mark.slow
@pytest.mark.parametrize("backend", LIVING, ids=lambda name: name.rpartition(":")[2])
def test_each_use_is_made_and_does_not_matter(launches_of: Callable[[Case], list[Launched]], backend: str) -> None:
    # Sessions of two dozen backends.
    uses = load(backend).capability.earlier_uses
    plain = len(launches_of(case_of(backend)))
    assert plain
    for use in uses:
        more = len(launches_of(case_of(backend, use))) - plain
        # A neighbour is planned and runs.
        assert (more > 0) is (use not in QUIET), (use, more)
    passed(case_of(backend, *uses))


def test_the_layers_of_a_life_are_those_that_there_are_modules_for() -> None:
    others = {
        U.PLANNED_OTHER_HEADS,
        U.PLANNED_OTHER_HEAD_DIM,
        U.PLANNED_OTHER_DTYPE,
        U.PLANNED_OTHER_WINDOW,
        U.PLANNED_OTHER_SOFT_CAP,
    }
    assert set(uses_of((PLAIN, EIGHT_BITS, CAPPED))) == others
    assert set(uses_of((PLAIN,))) == {U.PLANNED_OTHER_HEADS}
    assert set(uses_of((WINDOWED,))) == {U.PLANNED_OTHER_HEADS, U.PLANNED_OTHER_WINDOW}


@pytest.mark.parametrize(
    ("use", "changed"),
    [
        (U.PLANNED_OTHER_HEADS, {"num_kv_heads": 2}),
        (U.PLANNED_OTHER_WINDOW, {"head_dim_qk": 128, "window_left": 0, "q_data_type": torch.float16}),
        (U.PLANNED_OTHER_SOFT_CAP, {"head_dim_qk": 128, "logits_soft_cap": 2.0}),
        (U.PLANNED_OTHER_HEAD_DIM, {"head_dim_qk": 128, "logits_soft_cap": 2.0}),
        (U.PLANNED_OTHER_DTYPE, {"head_dim_qk": 128, "window_left": 0, "q_data_type": torch.float16}),
    ],
)
def test_another_layer_differs_as_little_as_its_modules_allow(use: EarlierUse, changed: dict[str, object]) -> None:
    layer: dict[str, object] = {
        "num_kv_heads": 1,
        "head_dim_qk": 64,
        "window_left": -1,
        "logits_soft_cap": 0.0,
        "sm_scale": 0.5,
    }
    layer["q_data_type"] = torch.bfloat16
    assert other_layer(use, layer, PLAIN.simplest, (PLAIN, EIGHT_BITS, CAPPED)) == {**layer, **changed}


def paged(*uses: EarlierUse) -> Case:
    return case_of(f"{Path(wrapper_backends.__file__)}:FA2_PAGED", *uses, mode=Mode.EXTEND)


def spoil(monkeypatch: pytest.MonkeyPatch, plan: Callable[[Any, Callable[..., None], dict[str, Any]], None]) -> None:
    """Let `plan` take the place of the wrappers' own, which it gets."""
    right = fake_wrappers._Wrapper.plan
    wrong = lambda self, **arguments: plan(self, lambda: right(self, **arguments), arguments)  # noqa: E731
    monkeypatch.setattr(fake_wrappers._Wrapper, "plan", wrong)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("window_left", U.PLANNED_OTHER_WINDOW),
        ("logits_soft_cap", U.PLANNED_OTHER_SOFT_CAP),
        ("sm_scale", U.PLANNED_OTHER_SCALE),
        ("causal", U.PLANNED_WITHOUT_MASK),
    ],
)
def test_a_plan_that_keeps_an_argument_of_the_one_before_fails_after_it(
    monkeypatch: pytest.MonkeyPatch, name: str, use: EarlierUse
) -> None:
    def keeping(self: Any, plan: Callable[[], None], _: dict[str, Any]) -> None:
        before = getattr(self, "settings", {})
        plan()
        self.settings |= {key: value for key, value in before.items() if key == name}

    spoil(monkeypatch, keeping)
    assert run(paged()).observations == ()
    assert run(paged(use)).observations


def test_a_plan_that_counts_on_rests_fails_after_they_are_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    def skipping(self: Any, plan: Callable[[], None], _: dict[str, Any]) -> None:
        again = hasattr(self, "settings")
        plan()
        if not again:
            self.ints[0] = 1
        if self.ints[0] != 1:
            self.settings["sm_scale"] = 0.0

    spoil(monkeypatch, skipping)
    assert run(paged(U.PLANNED_ALIKE)).observations == ()
    assert run(paged(U.PLANNED_ALIKE, U.OVERWRITTEN)).observations


def test_workspaces_are_those_of_a_wrapper_and_its_parts() -> None:
    # FlashInfer's wrappers keep the wrapper of a backend that was not asked for as None.
    first, second = torch.zeros(2), torch.zeros(3)
    level = SimpleNamespace(_int_workspace_buffer=second, _cute_dsl_wrapper=None)
    cascade = SimpleNamespace(int_workspace_buffer_p=first, _batch_prefill_wrappers=[level, level])
    assert [workspace.numel() for workspace in own_workspaces(cascade, OWN_INTEGERS)] == [2, 3, 3]


def test_a_copy_runs_the_plan_of_its_original(launches_of: Callable[[Case], list[Launched]]) -> None:
    plan, ran = launches_of(paged(U.COPIED))
    assert plan.arguments["wrapper"] is not ran.arguments["wrapper"]
    assert vars(plan.arguments["wrapper"]) == vars(ran.arguments["wrapper"])


@pytest.mark.parametrize("backend", ["FA2_PAGED", "CUDA_GRAPH_DECODE"])
def test_a_neighbour_shares_the_workspace_of_floats(
    launches_of: Callable[[Case], list[Launched]], backend: str
) -> None:
    launches = launches_of(case_of(f"{Path(wrapper_backends.__file__)}:{backend}", U.NEIGHBOUR))
    wrappers = {id(each.arguments["wrapper"]): each.arguments["wrapper"] for each in launches}
    assert len(wrappers) == 2
    assert len({wrapper.floats.data_ptr() for wrapper in wrappers.values()}) == 1


def test_a_run_on_another_stream_waits_and_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Stream:
        def __init__(self, name: str = "other") -> None:
            self.name = name

        def wait_stream(self, other: "Stream") -> None:
            events.append(f"{self.name} waits for {other.name}")

        def __enter__(self) -> None:
            events.append(f"on {self.name}")

        def __exit__(self, *_: object) -> None:
            events.append(f"off {self.name}")

    for name, value in {
        "is_available": lambda: True,
        "current_stream": lambda: Stream("here"),
        "Stream": Stream,
        "stream": lambda stream: stream,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    op = Op("run", lambda **arguments: events.append(f"run {arguments}"), frozenset({"out"}))
    assert lives.on_another_stream(op, ()) is op
    apart = lives.on_another_stream(op, (U.OTHER_STREAM,))
    assert (apart.name, apart.writes) == (op.name, op.writes)
    apart.function(out=1)
    assert events == ["other waits for here", "on other", "run {'out': 1}", "off other", "here waits for other"]


def test_a_module_of_the_first_wrapper_of_its_name_is_a_failure_of_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = f"{Path(wrapper_backends.__file__)}:FA2_SINKS_SECOND"
    assert run(case_of(backend)).observations == ()
    loaded: dict[tuple[object, bool], int] = {}
    kind = fake_wrappers.BatchAttentionWithAttentionSinkWrapper
    created, compute = kind.__init__, kind.compute

    def create(self: Any, **arguments: Any) -> None:
        created(self, **arguments)
        # The name says the dtype of queries and whether there is a window.
        name = (arguments["q_data_type"], arguments["window_left"] >= 0)
        self.module_dim = loaded.setdefault(name, arguments["head_dim_qk"])

    def attend(self: Any, arguments: dict[str, Any], out: torch.Tensor, lse: torch.Tensor) -> None:
        compute(self, arguments, out, lse)
        out[..., self.module_dim :] = 0

    monkeypatch.setattr(kind, "__init__", create)
    monkeypatch.setattr(kind, "compute", attend)
    assert run(case_of(backend)).observations
    loaded.clear()
    assert run(case_of(f"{Path(wrapper_backends.__file__)}:FA2_SINKS")).observations == ()


def test_a_cropped_mask_is_that_of_its_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    def causal(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        del batch, head
        return key <= query

    asked: list[tuple[int, int]] = []
    made = flex_attention.create_block_mask

    def create(seen: Any, batch: int, heads: int, rows: int, keys: int, device: str) -> Any:
        asked.append((rows, keys))
        return made(seen, batch, heads, rows, keys, device=device)

    monkeypatch.setattr(flex_attention, "create_block_mask", create)
    cropped, plain = (block_mask(causal, 1, (300, 150), "cpu", cropped=each) for each in (True, False))
    assert asked[0] > asked[1] == (300, 150)
    assert cropped.seq_lengths == plain.seq_lengths == (300, 150)
    assert torch.equal(cropped.to_dense(), plain.to_dense())


def test_a_cropped_mask_whose_lengths_are_rounded_up_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    # As torch 2.11 does; its flex_attention refuses such a mask.
    adjust = flex_attention.BlockMask._adjust
    monkeypatch.setattr(flex_attention.BlockMask, "_adjust", lambda self, *_: adjust(self, 384, 256))
    with pytest.raises(Unsupported, match=r"rounds the lengths of a cropped block mask up to \(384, 256\)"):
        block_mask(lambda _batch, _head, query, key: key <= query, 1, (300, 150), "cpu", cropped=True)
