"""vLLM's CPU attention as backends: batches that pass, known faults, and the reasons that it can't run."""

import ctypes
import dataclasses
import importlib.metadata
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from repetition import examples
from small_cases import drawn, lighter, passed, run, step

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.libraries import vllm_cpu
from attnfuzz.kernels.libraries.vllm_cpu import ATTENTION, VLLM_CPU_BACKENDS, attend
from attnfuzz.kernels.libraries.vllm_cpu_writes import ROTARY_EMBEDDING
from attnfuzz.reference.case import Case, Mode, Step, ValueFamily
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, KvLayout
from attnfuzz.reference.rope import Pairing

needs_library = pytest.mark.skipif(ATTENTION.missing() is not None, reason="needs vllm-cpu")

GEOMETRY = Geometry(
    q_heads=4,
    kv_heads=2,
    head_dim_qk=64,
    head_dim_vo=64,
    page_size=32,
    dtype=DType.BFLOAT16,
    kv_dtype=DType.BFLOAT16,
    kv_layout=KvLayout.NHD,
)
STEPS = (
    step(Mode.DECODE, (1, 1), (1, 300), (1, 7)),
    step(Mode.EXTEND, (3, 3), (0, 5), (1, 9), (40, 40), (2, 65)),
    step(Mode.TARGET_VERIFY, (4, 4), (4, 41), stride=4),
)


def case(steps: tuple[Step, ...] = STEPS, backend: str = ATTENTION.name, **fields: Any) -> Case:
    return Case(backend=backend, geometry=msgspec.structs.replace(GEOMETRY, **fields), steps=steps)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Workers have one thread, and vLLM's schedule is for all threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@needs_library
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("backend", ["vllm_cpu:attention", "vllm_cpu:split"])
@pytest.mark.parametrize(
    "fields",
    [
        {"window_left": 5},
        {"soft_cap": 30.0},
        {"dtype": DType.FLOAT32, "kv_dtype": DType.FLOAT32},
        {"kv_dtype": DType.FLOAT8_E4M3},
        {"head_dim_qk": 80, "head_dim_vo": 80},
    ],
)
def test_batches_of_all_kinds_pass(backend: str, fields: dict[str, Any]) -> None:
    assert passed(case(backend=backend, **fields)).rows


@needs_library
@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@examples(20, 100)
def test_drawn_cases_pass_except_for_known_failures(count: int) -> None:
    """Sinks are read past their end, which kills this process, and large logits overflow under a soft cap."""
    plain = [each for each in drawn(ATTENTION.name, count) if not (each.geometry.sinks or each.geometry.soft_cap)]
    assert plain
    for each in plain:
        assert run(each).observations == ()


@needs_library
@pytest.mark.usefixtures("one_thread")
def test_logits_beyond_a_soft_cap_are_nan() -> None:
    large = msgspec.structs.replace(case((step(Mode.DECODE, (1, 48)),), soft_cap=1.0), values=ValueFamily.LARGE_LOGITS)
    assert {each.kind for each in run(large).observations} == {Kind.NOT_FINITE}


@needs_library
@pytest.mark.usefixtures("one_thread")
def test_nan_behind_the_last_key_is_read() -> None:
    (seen,) = run(case((step(Mode.DECODE, (1, 9)),), backend="vllm_cpu:stale_nan")).observations
    assert seen.kind is Kind.NOT_FINITE


@needs_library
def test_a_head_size_without_an_fp8_cache_is_unsupported() -> None:
    verdict = run(case(kv_dtype=DType.FLOAT8_E4M3, head_dim_qk=80, head_dim_vo=80))
    assert verdict.unsupported is not None
    assert "fp8 cache" in verdict.unsupported


@wraps(attend)
def read_past_the_cache(*, kv_cache: torch.Tensor, **arguments: Any) -> None:
    attend(kv_cache=kv_cache, **arguments)
    ctypes.string_at(kv_cache.data_ptr() + kv_cache.nbytes, 1)


BEYOND = dataclasses.replace(ATTENTION, label="vllm_cpu:beyond", function=read_past_the_cache)


# Processes are needed: the accesses kill the one that makes them.
@needs_library
@pytest.mark.slow
def test_stray_reads_of_the_cache_and_of_the_sinks_fault(runner: Runner) -> None:
    decode = (step(Mode.DECODE, (1, 9)),)
    for place, stray in {
        "kv_cache": case(decode, backend=f"{Path(__file__)}:BEYOND"),
        "sinks": case(decode, sinks=True),
    }.items():
        (fault,) = runner.verdict(stray).observations
        assert (fault.kind, fault.place) == (Kind.ILLEGAL_ACCESS, place)


class Wheel:
    """An installed wheel that asks for torch 1.2.3, at a place without files."""

    requires = ("torch==1.2.3+cpu; platform_machine == 'x86_64'",)

    def locate_file(self, path: str) -> Path:
        return Path("/nowhere") / path


def there(*_: object) -> None:
    return None


@pytest.mark.parametrize(
    ("machine", "avx512", "other", "reason"),
    [
        ("aarch64", True, {}, "only been run on x86_64"),
        ("x86_64", False, {}, "which this CPU lacks"),
        ("x86_64", True, {}, "linked against torch 1.2.3"),
        ("x86_64", True, {"other_torch": there, "_no_numa": there}, "it was not built for x86"),
    ],
)
def test_missing_requirements_are_reported_without_loading_the_library(
    monkeypatch: pytest.MonkeyPatch, machine: str, other: dict[str, Callable[[], None]], reason: str, *, avx512: bool
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: avx512)
    monkeypatch.setattr(vllm_cpu, "distribution", lambda _: Wheel())
    for name, answer in other.items():
        monkeypatch.setattr(vllm_cpu, name, answer)
    said = vllm_cpu.why_not()
    assert said is not None
    assert reason in said


def test_without_the_wheel_the_remedy_leaves_its_dependencies_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("attnfuzz.kernels.libraries.installed.version", missing)
    for backend in VLLM_CPU_BACKENDS:
        assert backend.missing() == "vllm-cpu is not installed: pip install --no-deps 'vllm-cpu>=0.32.0'"


def stores_unaligned(case: Case) -> bool:
    """Whether halves are longer than a vector of eight, and no multiple of it."""
    assert case.rope is not None
    half = case.rope.dim(case.geometry) // 2
    return case.rope.pairing is Pairing.HALVES and half > 8 and half % 8 != 0


@pytest.mark.slow
@pytest.mark.skipif(ROTARY_EMBEDDING.missing() is not None, reason="vllm-cpu is not installed")
@examples(25, 200)
def test_vllms_rotation_passes_but_for_halves_of_unaligned_vectors(count: int) -> None:
    """In a process, which a misaligned access ends."""
    with Runner() as runner:
        for case in lighter(drawn(ROTARY_EMBEDDING.name, count)):
            verdict = runner.verdict(case)
            if stores_unaligned(case):
                assert {each.kind for each in verdict.observations} <= {Kind.ILLEGAL_ACCESS}
            else:
                assert (verdict.unsupported, verdict.observations) == (None, ()), case
