"""torch's varlen_attn: its own Python code on a kernel for CPUs, and releases whose signature is another."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from msgspec.structs import replace
from repetition import examples
from small_cases import drawn, lighter, run, step

from attnfuzz.kernels.cuda import visible
from attnfuzz.kernels.gpu.direct import varlen
from attnfuzz.reference.arguments import ArgumentForm, ArgumentRule
from attnfuzz.reference.case import Case, Mask, Mode, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, KvLayout

pytest.importorskip("flashinfer", reason="the fakes beside it are of FlashInfer's wrappers")
import fake_flash
import varlen_on_cpu

F = ArgumentForm
GEOMETRY = Geometry(
    q_heads=3,
    kv_heads=3,
    head_dim_qk=8,
    head_dim_vo=8,
    page_size=16,
    dtype=DType.BFLOAT16,
    kv_dtype=DType.BFLOAT16,
    kv_layout=KvLayout.HND,
)
STEP = step(Mode.CHUNKED_PREFILL, (2, 5), (1, 4), (3, 0))

REFUSES_EMPTY = "a step without requests is refused"


@pytest.fixture(autouse=True)
def installed() -> ModuleType:
    """Torch's module. Importing it imports torch's compiler, which takes each process that collects tests 2 s."""
    module: ModuleType = pytest.importorskip("torch.nn.attention.varlen", reason="torch has it since 2.10")
    if not hasattr(module, "varlen_attn_out"):
        pytest.skip("calls are bound to the signatures of torch 2.12")
    return module


def case(backend: str = "VARLEN_ATTN", *forms: ArgumentForm, steps: tuple[Step, ...] = (STEP,), **more: Any) -> Case:
    name = f"{Path(varlen_on_cpu.__file__)}:{backend}"
    return Case(backend=name, geometry=GEOMETRY, steps=steps, arguments=forms, **more)


@pytest.mark.slow  # It runs some hundred steps.
@examples(8, 60)
@pytest.mark.parametrize("backend", ["VARLEN_ATTN", "VARLEN_ATTN_LSE", "VARLEN_ATTN_OUT"])
def test_drawn_cases_pass(backend: str, count: int) -> None:
    rows = 0
    for each in lighter(drawn(f"{Path(varlen_on_cpu.__file__)}:{backend}", count)):
        verdict = run(each)
        assert not verdict.observations
        assert (verdict.unsupported or REFUSES_EMPTY).startswith(REFUSES_EMPTY)
        rows += verdict.rows
    assert rows


@pytest.mark.slow
@pytest.mark.parametrize("rule", varlen.OUT_ARGUMENTS, ids=lambda rule: rule.form)
def test_a_form_is_right_or_refused(rule: ArgumentRule) -> None:
    mask = Mask.FULL if rule.form is F.WINDOW_DEFAULT else Mask.CAUSAL
    verdict = run(case("VARLEN_ATTN_OUT", rule.form, mask=mask))
    assert not verdict.observations
    assert verdict.rows == 18


@pytest.mark.parametrize("form", [F.QUERY_STARTS_INT64, F.QUERY_STARTS_GAPS, F.KEY_STARTS_GAPS, F.QUERY_ELEMENTS_APART])
def test_a_refused_form_that_is_accepted_is_a_failure(form: ArgumentForm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_flash, "_check", lambda *_: None)
    (failure,) = run(case("VARLEN_ATTN", form)).observations
    assert f"{form}: accepted, although the API refuses it" in failure.message


@pytest.mark.parametrize(
    ("form", "mask", "plain", "formed"),
    [
        (F.KEY_LENGTHS_GIVEN, Mask.CAUSAL, {"seqused_k": None}, {"seqused_k": [5, 4, 0]}),
        (F.SPLIT_DISABLED, Mask.CAUSAL, {"num_splits": None}, {"num_splits": 1}),
        (F.SCALE_DEFAULT, Mask.CAUSAL, {"scale": pytest.approx(8**-0.5)}, {"scale": None}),
        (F.WINDOW_DEFAULT, Mask.FULL, {"window_size_right": -1}, {"window_size_right": -1}),
        (F.WINDOW_FAR, Mask.CAUSAL, {"window_size_left": -1}, {"window_size_left": 2**31 - 1}),
    ],
)
def test_an_option_reaches_the_kernel(
    form: ArgumentForm, mask: Mask, plain: dict[str, Any], formed: dict[str, Any]
) -> None:
    for forms, due in (((), plain), ((form,), formed)):
        fake_flash.OPTIONS.clear()
        assert not run(case("VARLEN_ATTN", *forms, mask=mask)).observations
        (name,) = due
        assert [options.get(name) for options in fake_flash.OPTIONS] == [due[name]]


def test_a_step_without_requests_is_refused() -> None:
    verdict = run(case(steps=(step(Mode.DECODE),)))
    assert verdict.unsupported is not None
    assert verdict.unsupported.startswith(REFUSES_EMPTY)


def of_release(installed: ModuleType, *lacks: str) -> Callable[..., Any]:
    """The installed function with the signature of a release that `lacks` some arguments."""
    function: Any = partial(installed.varlen_attn)
    signature = inspect.signature(function)
    kept = [each for name, each in signature.parameters.items() if name not in lacks]
    function.__signature__ = signature.replace(parameters=kept)
    return cast("Callable[..., Any]", function)


SINCE_2_12 = ("enable_gqa", "seqused_k", "block_table", "num_splits")
SINCE_2_11 = ("scale", "window_size", *SINCE_2_12)
GROUPED = replace(GEOMETRY, q_heads=4, kv_heads=2)


@pytest.mark.parametrize(
    ("lacks", "changes", "named"),
    [
        (SINCE_2_11, {}, "scale, window_size"),
        (SINCE_2_12, {}, None),
        (SINCE_2_12, {"geometry": GROUPED}, "enable_gqa"),
        (SINCE_2_12, {"arguments": (F.KEY_LENGTHS_GIVEN,)}, "seqused_k"),
        (SINCE_2_12, {"arguments": (F.SPLIT_DISABLED,)}, "num_splits"),
    ],
)
def test_an_argument_that_a_release_lacks_is_unsupported(
    lacks: tuple[str, ...],
    changes: dict[str, Any],
    named: str | None,
    installed: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installed, "varlen_attn", of_release(installed, *lacks))
    verdict = run(replace(case("VARLEN_ATTN_LSE"), **changes))
    assert not verdict.observations
    due = named and f"torch {torch.__version__}: varlen_attn has no argument {named}"
    assert verdict.unsupported == due


def test_a_release_without_the_function_is_unsupported(installed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(installed, "varlen_attn_out")
    due = f"torch {torch.__version__} has no torch.nn.attention.varlen.varlen_attn_out"
    assert run(case("VARLEN_ATTN_OUT")).unsupported == due
    monkeypatch.setattr(visible, "missing", lambda *_: None)
    assert (varlen.VARLEN_ATTN_OUT.missing(), varlen.VARLEN_ATTN.missing()) == (due, None)


def test_where_there_is_no_gpu_it_is_missing() -> None:
    for backend in (varlen.VARLEN_ATTN, varlen.VARLEN_ATTN_LSE, varlen.VARLEN_ATTN_OUT):
        assert torch.cuda.is_available() or "needs an NVIDIA GPU" in (backend.missing() or "")
