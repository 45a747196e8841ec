"""Paged attention of transformers as backends: batches that pass, known faults, and the arranged memory."""

import ctypes
import dataclasses
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from library_cases import STEPS
from repetition import examples
from small_cases import HEADS, drawn, passed, run

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.libraries.transformers import PAGED_EAGER, PAGED_SDPA, TRANSFORMERS_BACKENDS, attend_by_sdpa
from attnfuzz.reference.case import Case, ValueFamily
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout

needs_library = pytest.mark.skipif(PAGED_EAGER.missing() is not None, reason="needs transformers")
NAMES = [backend.name for backend in TRANSFORMERS_BACKENDS]


def case(backend: str, *, dtype: DType = DType.FLOAT32, **fields: Any) -> Case:
    plain = {"kv_layout": KvLayout.NHD, "dtype": dtype, "kv_dtype": dtype}
    return Case(backend=backend, geometry=msgspec.structs.replace(HEADS, **plain | fields), steps=STEPS)


@needs_library
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("window_left", [-1, 1, 5])
def test_batches_of_all_kinds_pass(name: str, window_left: int) -> None:
    for dtype in DType.FLOAT32, DType.BFLOAT16:
        assert passed(case(name, dtype=dtype, window_left=window_left, sinks=name.endswith("sinks"))).rows


@needs_library
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@examples(20, 100)
def test_drawn_cases_pass_except_for_known_failures(name: str, count: int) -> None:
    """A window of one key is no window, and a soft cap is left out."""
    plain = [each for each in drawn(name, count) if each.geometry.window_left != 0 and not each.geometry.soft_cap]
    assert plain
    for each in plain:
        assert run(each).observations == ()


@needs_library
@pytest.mark.parametrize("fields", [{"window_left": 0}, {"soft_cap": 5.0}])
def test_an_ignored_feature_is_found(fields: dict[str, Any]) -> None:
    wrong = msgspec.structs.replace(case(PAGED_EAGER.name, **fields), values=ValueFamily.LARGE_LOGITS)
    assert {each.kind for each in run(wrong).observations} == {Kind.OUTPUT_MISMATCH}


@wraps(attend_by_sdpa)
def read_past_the_keys(*, key: torch.Tensor, **arguments: Any) -> None:
    attend_by_sdpa(key=key, **arguments)
    ctypes.string_at(key.data_ptr() + key.nbytes, 1)


BEYOND = dataclasses.replace(PAGED_SDPA, label="transformers:beyond", function=read_past_the_keys)


# Processes are needed: the access kills the one that makes it.
@needs_library
@pytest.mark.slow
def test_a_read_past_the_gathered_keys_faults(runner: Runner) -> None:
    (fault,) = runner.verdict(case(f"{Path(__file__)}:BEYOND")).observations
    assert (fault.kind, fault.place) == (Kind.ILLEGAL_ACCESS, "key")


def test_refused_features_are_not_in_the_capability() -> None:
    assert PAGED_SDPA.capability.why_not(case(PAGED_SDPA.name, soft_cap=5.0)) == "a logit soft cap"
    assert PAGED_SDPA.capability.why_not(case(PAGED_SDPA.name, sinks=True)) == "attention sinks"
