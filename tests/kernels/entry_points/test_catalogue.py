"""Every entry point knows the arguments of FlashInfer's function, takes a legal call of it, and survives any other."""

import importlib
import inspect
from typing import Any

import pytest
import torch
from entry_point_calls import CALLS

from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.kernels.meaning.entry_point import EntryPoint
from attnfuzz.kernels.native.ops import NATIVE


def test_every_native_kernel_is_known_by_the_name_and_module_of_its_op() -> None:
    for op in NATIVE.ops():
        assert (ENTRY_POINTS[op.name].name, ENTRY_POINTS[op.name].module) == (op.name, op.module)


def test_there_is_a_legal_call_of_every_entry_point_to_test_it_with() -> None:
    assert CALLS.keys() == ENTRY_POINTS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_a_legal_call_breaks_nothing(name: str) -> None:
    assert ENTRY_POINTS[name].breaches(CALLS[name]()) == ()


@pytest.mark.parametrize("name", [name for name in CALLS if ENTRY_POINTS[name].module])
def test_a_legal_call_binds_to_the_installed_flashinfer(name: str) -> None:
    pytest.importorskip("flashinfer", reason="compares with the installed FlashInfer")
    function = getattr(importlib.import_module(str(ENTRY_POINTS[name].module)), name)
    inspect.signature(function).bind(**CALLS[name]())


@pytest.mark.parametrize("name", CALLS)
def test_each_tensor_of_a_call_is_reported_once_with_a_word_for_each_axis(name: str) -> None:
    call = CALLS[name]()
    tensors = {key: value for key, value in call.items() if isinstance(value, torch.Tensor)}
    for key, value in call.items():
        if isinstance(value, tuple):
            tensors |= {f"{key}[{index}]": member for index, member in enumerate(value)}
    sent = {parameter.name: parameter.axes for parameter in ENTRY_POINTS[name].parameters(call)}
    assert {key: len(axes) for key, axes in sent.items()} == {key: value.ndim for key, value in tensors.items()}
    assert all(all(axes) for axes in sent.values())


STRANGE: tuple[object, ...] = (
    None,
    "text",
    1 << 60,
    1 << 70,
    -3,
    0,
    2.5,
    float("nan"),
    [],
    ("a", 1),
    torch.float32,
    object(),
)
STRANGE_TENSORS: tuple[object, ...] = (
    torch.zeros(0),
    torch.zeros(0, dtype=torch.int32),
    torch.zeros((), dtype=torch.int32),
    torch.zeros(2, 2, 2, 2, 2, 2),
    torch.zeros(0, 0, 0),
    torch.zeros(0, 0, 0, 0),
    torch.full((5,), -(1 << 31), dtype=torch.int32),
    torch.full((3, 2), (1 << 31) - 1, dtype=torch.int32),
    torch.zeros(3, dtype=torch.complex64),
    (torch.zeros(1),),
    (torch.zeros(0, 0, 0, 0), torch.zeros(0, 0, 0, 0)),
)


def is_refused(entry: EntryPoint, call: dict[str, Any]) -> bool:
    try:
        entry.parameters(call)
        entry.spans(call)
        entry.workspace(call)
    except ValueError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_a_call_with_anything_for_an_argument_is_judged_or_refused_as_a_value(name: str) -> None:
    entry = ENTRY_POINTS[name]
    for argument in (*CALLS[name](), "cum_seq_lens_q", "q_seq_lens_cpu", "mask", "sinks", "window_left", "kv_layout"):
        for strange in (*STRANGE, *STRANGE_TENSORS):
            call = CALLS[name](**{argument: strange})
            assert entry.breaches(call) or not is_refused(entry, call)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_without_one_of_its_arguments_is_judged_and_one_without_any_tensor_is_refused(name: str) -> None:
    entry = ENTRY_POINTS[name]
    for argument in CALLS[name]():
        call = CALLS[name]()
        del call[argument]
        entry.breaches(call)
    (breach,) = entry.breaches({})
    assert breach.text == f"{breach.arguments[0]} is missing"
    with pytest.raises(ValueError, match="is missing"):
        entry.parameters({})
