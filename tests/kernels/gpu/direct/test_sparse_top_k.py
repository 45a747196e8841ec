"""FlashInfer's top-k: the arguments are those of the installed release, and the adaptation selects as documented."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.kernels.gpu import build_record
from attnfuzz.kernels.gpu.direct import sparse_top_k
from attnfuzz.kernels.gpu.direct.sparse_top_k import TOP_K_MODULE
from attnfuzz.kernels.interface.toolchain import BUILT, lacks_modules
from attnfuzz.reference.sparse.lists import Selection

ROWS, WIDTH, K = 3, 40, 8
SCORES = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
STARTS = torch.tensor([0, 5, 30], dtype=torch.int32)
LENGTHS = torch.tensor([40, 20, 4], dtype=torch.int32)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Record calls, and answer `top_k` by torch."""
    made = []

    def call(module: str, name: str, /, **arguments: Any) -> Any:
        assert module == "flashinfer.topk"
        made.append((name, arguments))
        if name == "top_k":
            return torch.topk(arguments["input"], arguments["k"])
        return torch.zeros(ROWS, K, dtype=torch.int32)

    monkeypatch.setattr(sparse_top_k, "call", call)
    return made


def arguments_of(function: Callable[..., None], **others: torch.Tensor | int) -> None:
    function(scores=SCORES, lengths=LENGTHS, row_starts=STARTS, **others)


def test_the_installed_functions_take_the_arguments(called: list[tuple[str, dict[str, Any]]]) -> None:
    topk = pytest.importorskip("flashinfer.topk")
    lists = torch.empty(ROWS, K, dtype=torch.int32)
    table, requests = torch.zeros(2, 4, dtype=torch.int32), torch.zeros(ROWS, dtype=torch.int32)
    arguments_of(sparse_top_k.top_k, indices=lists)
    arguments_of(sparse_top_k.top_k_slots, slots=lists, block_table=table, requests=requests, page_size=16)
    arguments_of(sparse_top_k.top_k_offsets, slots=lists, offsets=STARTS)
    assert [name for name, _ in called] == ["top_k", "top_k_page_table_transform", "top_k_ragged_transform"]
    for name, arguments in called:
        inspect.signature(getattr(topk, name)).bind(**arguments)


def test_a_campaign_on_compiled_modules_leaves_it_out_until_its_module_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(BUILT, "1")
    ready: set[str] = set()
    monkeypatch.setattr(build_record, "ready", lambda: ready)
    backend = resolve("flashinfer:top_k")
    assert lacks_modules(backend)
    ready.add(TOP_K_MODULE.name)
    assert not lacks_modules(backend)


def test_a_selection_without_lengths_lists_only_keys_that_a_row_sees(called: list[tuple[str, dict[str, Any]]]) -> None:
    lists = torch.empty(ROWS, K, dtype=torch.int32)
    arguments_of(sparse_top_k.top_k, indices=lists)
    selection = Selection(SCORES, tuple(STARTS.tolist()), tuple(LENGTHS.tolist()), K)
    assert [selection.mistake(row, lists[row]) for row in range(ROWS)] == [""] * ROWS
    assert len(called) == 1
