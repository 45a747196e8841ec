"""Kernels that lose large and tiny numbers are found, and those that keep them pass."""

from typing import Any

import pytest
import torch
from msgspec.structs import replace
from plain_attention import attend_call
from small_cases import HEADS, LATENTS, drawn_for, passed, run, step

from attnfuzz.kernels.functions.function_backend import FunctionBackend
from attnfuzz.reference.case import Case, Magnitude, Mode, ValueFamily
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout

STEPS = (step(Mode.EXTEND, (2, 9), (3, 3)), step(Mode.DECODE, (1, 10), (1, 40)))
DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


def attend(*, out: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, **others: Any) -> None:
    answer = attend_call(k_cache=k_cache, v_cache=v_cache, **others).out
    out[: len(answer)] = answer.to(out.dtype)


def attend_in_fp16(*, k_cache: torch.Tensor, v_cache: torch.Tensor, **others: Any) -> None:
    attend(k_cache=k_cache.half(), v_cache=v_cache.half(), **others)


def case_of(magnitude: Magnitude, dtype: DType, backend: str = "fp16", **fields: Any) -> Case:
    geometry = replace(HEADS, dtype=dtype, kv_dtype=dtype, kv_layout=KvLayout.NHD)
    return Case(backend=backend, geometry=geometry, steps=STEPS, magnitude=magnitude, **fields)


@pytest.mark.parametrize("magnitude", Magnitude)
def test_keys_and_values_sent_through_fp16_fail_unless_they_are_plain(magnitude: Magnitude) -> None:
    verdict = run(case_of(magnitude, DType.BFLOAT16), FunctionBackend(attend_in_fp16))
    assert bool(verdict.failures) is (magnitude is not Magnitude.PLAIN)


@pytest.mark.slow
def test_a_few_drawn_cases_show_a_conversion_to_fp16() -> None:
    backend = FunctionBackend(attend_in_fp16)
    cases = drawn_for(replace(backend.capability, dtypes=(DType.BFLOAT16,), pool_holes=False), 60, "fp16")
    wrong = [case for case in cases if run(case, backend).failures]
    assert wrong
    assert all(case.magnitude is not Magnitude.PLAIN for case in wrong)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("magnitude", Magnitude)
@pytest.mark.parametrize("backend", ["native", "torch_sdpa", "function"])
def test_right_kernels_keep_all_magnitudes(backend: str, magnitude: Magnitude, dtype: DType) -> None:
    names = {"native": "trtllm_mha", "torch_sdpa": "torch_sdpa", "function": "function"}
    for family in (ValueFamily.NORMAL, ValueFamily.FAINT, ValueFamily.STAGNANT):
        case = case_of(magnitude, dtype, names[backend], values=family)
        if backend == "native":
            case = replace(case, geometry=replace(case.geometry, kv_layout=KvLayout.HND))
        passed(case, FunctionBackend(attend) if backend == "function" else None)


@pytest.mark.parametrize("magnitude", [Magnitude.LARGE, Magnitude.TINY])
def test_latents_have_magnitudes_too(magnitude: Magnitude) -> None:
    geometry = replace(LATENTS, page_size=32)
    passed(Case(backend="trtllm_mla", geometry=geometry, steps=STEPS, magnitude=magnitude))


def test_a_weight_that_fp32_holds_in_few_bits_is_no_failure_on_large_values() -> None:
    for seed in range(4):
        case = case_of(Magnitude.LARGE, DType.FLOAT32, "trtllm_mha", values=ValueFamily.FAINT, seed=seed)
        passed(replace(case, geometry=replace(case.geometry, kv_layout=KvLayout.HND, q_heads=64)))
