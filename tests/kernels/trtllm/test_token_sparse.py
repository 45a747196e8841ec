"""Decode over lists of tokens: right in drawn cases, with mistakes found, and refusing what FlashInfer refuses."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnfuzz.harness.families.sparse import SPARSE as FAMILY
from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.search.examples import run_examples
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.gpu.sparse_libraries import token_sparse as on_gpu
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native.token_sparse import DECODE
from attnfuzz.kernels.sparse.backend import SparseBackend
from attnfuzz.kernels.trtllm.token_sparse import TOKEN_SPARSE
from attnfuzz.reference.sparse.case import SparseCase
from attnfuzz.strategies.lean import NO_LEAN

Arguments = dict[str, Any]
ROWS, TOP_K, SLOTS, DIM = 2, 4, 9, 64


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    TOKEN_SPARSE.prepare(lambda _: None)


@pytest.fixture(scope="module")
def cases() -> list[SparseCase]:
    found: list[SparseCase] = []
    run_examples(
        FAMILY.cases(TOKEN_SPARSE.capability, TOKEN_SPARSE.name, NO_LEAN), found.append, examples=16, seed_of=5
    )
    return found


def observations(case: SparseCase, backend: SparseBackend = TOKEN_SPARSE) -> tuple[Observation, ...]:
    run = Execution(Task(case=case, backend=backend.name), lambda _: None, backend=backend)  # type: ignore[arg-type]
    verdict = run.run()
    assert verdict.unsupported is None
    return verdict.observations


def changed(change: Callable[[Arguments], Arguments], op: Op = DECODE) -> SparseBackend:
    """Return a backend whose decode runs on changed arguments."""
    function = op.function
    faulty = replace(op, function=lambda **given: function(**{**given, **change(given)}))
    return replace(TOKEN_SPARSE, own={"attention": faulty})


def test_drawn_cases_pass(cases: list[SparseCase]) -> None:
    for case in cases:
        assert observations(case) == (), FAMILY.describe(case)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda given: {"block_tables": given["block_tables"][:, :1].expand(-1, 2, -1).contiguous()},
        lambda given: {"seq_lens": (given["seq_lens"] - 1).clamp(min=1)},
        lambda given: {"seq_lens": given["seq_lens"][:1].expand(len(given["seq_lens"])).contiguous()},
    ],
    ids=["values at the slots of keys", "the last entry dropped", "the count of the first row"],
)
def test_mistakes_about_lists_are_found(mistake: Callable[[Arguments], Arguments], cases: list[SparseCase]) -> None:
    backend = changed(mistake)
    assert any(observations(case, backend) for case in cases)


def call(**others: Any) -> Arguments:
    generator = torch.Generator().manual_seed(0)
    pool = torch.randn(2, SLOTS, 1, 1, DIM, generator=generator).bfloat16()
    return {
        "query": torch.randn(ROWS, 3, DIM, generator=generator).bfloat16(),
        "kv_cache": (pool[0], pool[1]),
        "workspace_buffer": torch.zeros(0, dtype=torch.uint8),
        "block_tables": torch.randint(SLOTS, (ROWS, 2, TOP_K), generator=generator, dtype=torch.int32),
        "seq_lens": torch.tensor([TOP_K, 1], dtype=torch.int32),
        "max_seq_len": TOP_K,
        "sparse_top_k": TOP_K,
        "uses_shared_paged_kv_idx": False,
        "enable_pdl": False,
        **others,
    }


def flashinfers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return FlashInfer's function on a launcher that computes nothing."""
    decode = pytest.importorskip("flashinfer.decode")
    if "sparse_top_k" not in inspect.signature(decode.trtllm_batch_decode_with_kv_cache).parameters:
        pytest.skip("FlashInfer has it since 0.7.4")
    launched = SimpleNamespace(trtllm_paged_attention_decode=lambda *_: None)
    monkeypatch.setattr(decode, "get_trtllm_gen_fmha_module", lambda: launched)
    monkeypatch.setattr(decode, "get_device_sm_count", lambda _: 148)
    function: Callable[..., Any] = decode.trtllm_batch_decode_with_kv_cache
    return function


def wide(heads: int, tokens: int) -> torch.Tensor:
    return torch.zeros(SLOTS, heads, tokens, DIM, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"q_len_per_req": 2}, "one query token"),
        ({"window_left": 3}, "sliding window"),
        ({"sinks": torch.zeros(3)}, "sinks"),
        ({"uses_shared_paged_kv_idx": True}, "uses_shared_paged_kv_idx=False"),
        ({"block_tables": torch.zeros(ROWS, TOP_K, dtype=torch.int32)}, "block_tables"),
        ({"seq_lens": torch.ones(1, dtype=torch.int32)}, "seq_lens"),
        ({"kv_cache": (wide(1, 2), wide(1, 2))}, "one-token"),
        ({"kv_cache": (wide(2, 1), wide(2, 1))}, "one KV head"),
        ({"sparse_top_k": 3, "block_tables": torch.zeros(ROWS, 2, 3, dtype=torch.int32)}, "multiple of 4"),
    ],
)
def test_calls_that_flashinfer_refuses_are_refused(
    wrong: Arguments, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=words):
        DECODE.function(out=torch.empty(0), **call(**wrong))
    theirs = flashinfers(monkeypatch)
    with pytest.raises(ValueError, match=words):
        theirs(backend="trtllm-gen", **call(**wrong))


def test_calls_of_a_gpu_are_taken_by_flashinfer(cases: list[SparseCase], monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = flashinfers(monkeypatch)

    def checked(given: Arguments) -> Arguments:
        assert given["backend"] == "trtllm-gen"
        theirs(**given, enable_pdl=False)
        return {}

    class Session(on_gpu.BlackwellTokenSparseSession):
        workspace_bytes = 0

    backend = replace(changed(checked), session=Session)
    assert on_gpu.TOKEN_SPARSE.kinds["attention"].writes >= {"out", "lse", "workspace_buffer"}
    assert observations(cases[0], backend) == ()
