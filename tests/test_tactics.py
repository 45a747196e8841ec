"""The orders of tuning and capturing, on FlashInfer's own autotuner with times that are made up."""

import importlib
import runpy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_attention import attend_paged

pytest.importorskip("flashinfer.mla._swa", reason="FlashInfer has it since 0.7.4")

from attnfuzz.reference.geometry import KvLayout

SCRIPT: Any = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "tactics.py"))
SWA: Any = importlib.import_module("flashinfer.mla._swa")
AUTOTUNER: Any = importlib.import_module("flashinfer.autotuner")
FASTEST = 3


def written(layer: dict[str, Any]) -> None:
    """Write the right output."""
    query, pool = layer["query"], layer["kv_cache"]
    answer = attend_paged(
        query.flatten(0, 1),
        pool.unsqueeze(1),
        pool[..., :1024].unsqueeze(1),
        layer["block_tables"],
        layout=KvLayout.HND,
        q_lens=(1,) * len(query),
        kv_lens=tuple(layer["seq_lens"].tolist()),
        bmm1_scale=layer["sm_scale"],
        window_left=layer["window_left"],
    )
    layer["out"].copy_(answer.out.view_as(layer["out"]))


class OnCpu:
    """Stands for a GPU whose kernels of some tactics are wrong."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wrong: frozenset[int] = frozenset()) -> None:
        self._wrong, self._capturing = wrong, False
        self._calls: list[tuple[int, dict[str, Any]]] = []
        monkeypatch.setattr(SWA, "_get_module", lambda: None)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self._capturing)
        monkeypatch.setattr(
            AUTOTUNER.AutoTuner, "_profile_single_kernel", lambda *given, **_: float(given[3] != FASTEST)
        )

    def call(self, **layer: Any) -> None:
        names = ("query", "kv_cache", "workspace_buffer", "block_tables", "seq_lens", "out")
        inputs = [layer[name] for name in names]
        runner = SWA._runner(layer["sm_scale"], layer["window_left"])
        _, tactic = AUTOTUNER.AutoTuner.get().choose_one("mla_swa_sm90", [runner], SWA._TUNING_CONFIG, inputs)
        self._launch(tactic, layer)

    def _launch(self, tactic: int, layer: dict[str, Any]) -> None:
        if self._capturing:
            self._calls.append((tactic, layer))
        elif tactic in self._wrong:
            layer["out"].zero_()
        else:
            written(layer)

    def capture(self, call: Callable[[], object]) -> Callable[[], None]:
        with self._recorded() as calls:
            call()

        def replay() -> None:
            for each in calls:
                self._launch(*each)

        return replay

    @contextmanager
    def _recorded(self) -> Iterator[list[Any]]:
        self._calls, self._capturing = [], True
        try:
            yield self._calls
        finally:
            self._capturing = False

    def rows(self) -> list[Any]:
        return [*SCRIPT["Orders"](self.call, AUTOTUNER, self.capture, "cpu").rows()]


def test_tactics_are_chosen_by_the_order_of_tuning_and_capturing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = OnCpu(monkeypatch).rows()
    assert SCRIPT["failures"](rows) == []
    tactics = {row.order: row.tactics for row in rows}
    assert tactics["not tuned"] == (-1,)
    assert tactics["captured, then replayed"] == (-1, -1)
    assert tactics["tuned, then run"] == (FASTEST, FASTEST)
    assert tactics["tuned, captured, replayed"] == (FASTEST, FASTEST, FASTEST)
    assert tactics["captured, tuned, replayed"] == (-1, FASTEST)
    assert tactics["another batch tuned, then run"] == (FASTEST, -1)
    assert tactics["winners of another batch loaded"] == (-1,)
    assert [tactics[f"winner {tactic} loaded"] for tactic in range(6)] == [(tactic,) for tactic in range(6)]
    assert [row.raised for row in rows if row.order == "tuned within a capture"] != [""]


def test_the_tactic_of_a_wrong_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SCRIPT["failures"](OnCpu(monkeypatch, frozenset({5})).rows())
    assert failed == ["winner 5 loaded", "winner 5 loaded, captured"]


def test_the_error_of_a_right_output_is_its_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = SCRIPT["Layer"].of((65, 1), "cpu")
    OnCpu(monkeypatch).call(**layer.arguments())
    assert 0 < layer.error() < 2**-7
