"""Backends with chunks of attention: attnfuzz's own kernels, and functions."""

from typing import Any

import torch
from msgspec.structs import replace
from plain_attention import attend_call
from small_cases import HEADS, passed, run, step

from attnfuzz.kernels.functions.function_backend import FunctionBackend, promised
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.geometry import KvLayout

CAN = Capability(attention_chunks=True, layouts=tuple(KvLayout))
CHUNKED = Case(
    backend="trtllm_mha_masked",
    geometry=replace(HEADS, attention_chunk=3),
    steps=(step(Mode.EXTEND, (4, 8), (2, 2)), step(Mode.DECODE, (1, 9), (1, 3))),
)


def attend(*, out: torch.Tensor, attention_chunk_size: int, **arguments: Any) -> None:
    """Attend to the keys of each query's chunk."""
    lengths, starts = arguments["seq_lens"].tolist(), arguments["cum_seq_lens_q"].tolist()
    arguments["mask"] = torch.zeros(starts[-1], max(lengths), dtype=torch.bool)
    for first, end, length in zip(starts, starts[1:], lengths, strict=False):
        own, key = torch.arange(length - (end - first), length).unsqueeze(1), torch.arange(length)
        chunks = key // attention_chunk_size == own // attention_chunk_size
        arguments["mask"][first:end, :length] = (key <= own) & chunks
    out[: starts[-1]] = attend_call(**arguments).out


def test_the_native_kernels_attend_within_chunks() -> None:
    passed(CHUNKED)
    assert run(CHUNKED, "trtllm_mha").observations


def test_a_function_is_passed_the_size_of_chunks() -> None:
    assert "attention_chunk_size" in promised(CAN, Contract())
    passed(CHUNKED, FunctionBackend(attend, capability=CAN))


def test_a_function_that_ignores_chunks_fails() -> None:
    def causal(*, out: torch.Tensor, attention_chunk_size: int, **arguments: Any) -> None:
        attend(out=out, attention_chunk_size=attention_chunk_size + 1000, **arguments)

    assert run(CHUNKED, FunctionBackend(causal, capability=CAN)).observations
