"""What is passed to FlashInfer is held against the signature that the installed release has."""

import functools
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from bound_call import bind

from attnfuzz.kernels.gpu.flashinfer_op import call, call_method, flashinfer_op, version
from attnfuzz.kernels.interface.backend import Unsupported

Release = Callable[..., str]


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as FlashInfer has them."""

    @functools.wraps(function)
    def wrapped(*args: Any, **arguments: Any) -> Any:
        return function(*args, **arguments)

    return wrapped


class Wrapper:
    """An object with a plan, as FlashInfer has them."""

    def __init__(self, workspace: int, backend: str = "auto") -> None:
        self.workspace, self.backend, self.planned = workspace, backend, 0

    @logged
    def plan(self, indptr: int, *, causal: bool = False) -> None:
        self.planned = indptr * (2 if causal else 1)


class SinkWrapper(Wrapper):
    """A wrapper that adds an argument to its plan."""

    def plan(self, *sinks: int, scale: int = 1, **arguments: Any) -> None:
        super().plan(scale * sum(sinks), **arguments)


@logged
def decode(query: int, out: int, window_left: int = -1) -> tuple[int, int, int]:
    return query, out, window_left


def anything(**arguments: Any) -> dict[str, Any]:
    return arguments


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a module of an older FlashInfer."""
    flashinfer = types.ModuleType("flashinfer")
    flashinfer.__version__ = "0.6.1"  # type: ignore[attr-defined] # a module without a file
    module = types.ModuleType(f"flashinfer_{request.node.name}")
    for each in (decode, anything, Wrapper, SinkWrapper):
        setattr(module, each.__name__, each)
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def test_an_op_calls_the_installed_function(old: str) -> None:
    op = flashinfer_op(old, "decode", frozenset({"out"}))
    assert (op.name, op.module, op.writes) == ("decode", old, frozenset({"out"}))
    assert op.function(query=1, out=2, window_left=3) == (1, 2, 3)


def test_the_same_function_is_the_same_op(old: str) -> None:
    writes = frozenset({"out"})
    assert flashinfer_op(old, "decode", writes) == flashinfer_op(old, "decode", writes)


def test_an_argument_that_the_release_lacks_is_left_out_if_it_is_none(old: str) -> None:
    assert call(old, "decode", query=1, out=2, sinks=None) == (1, 2, -1)
    assert bind(old, "decode", {"query": 1, "out": 2, "sinks": None}) == {"query": 1, "out": 2}


def test_an_argument_that_the_release_lacks_is_unsupported_if_it_matters(old: str) -> None:
    with pytest.raises(Unsupported, match=r"^flashinfer 0\.6\.1: decode has no argument sinks, lse$"):
        call(old, "decode", query=1, out=2, sinks=3, lse=False)


def test_a_function_that_the_release_lacks_is_unsupported(old: str) -> None:
    with pytest.raises(Unsupported, match=rf"^flashinfer 0\.6\.1 has no {old}\.prefill$"):
        flashinfer_op(old, "prefill", frozenset()).function(query=1)
    with pytest.raises(Unsupported, match=r"has no flashinfer_of_tomorrow\.decode"):
        bind("flashinfer_of_tomorrow", "decode", {})


def test_a_broken_installation_is_no_unsupported_case(monkeypatch: pytest.MonkeyPatch, old: str) -> None:
    def broken(_name: str) -> types.ModuleType:
        raise ModuleNotFoundError("no module cutlass", name="cutlass")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="cutlass"):
        bind(f"{old}.broken", "decode", {})


def test_a_missing_required_argument_raises(old: str) -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'out'"):
        bind(old, "decode", {"query": 1})


def test_a_function_of_anything_takes_anything(old: str) -> None:
    assert call(old, "anything", sinks=1) == {"sinks": 1}


def test_methods_are_bound_without_their_object(old: str) -> None:
    assert bind(old, "Wrapper.plan", {"indptr": 1, "causal": True}) == {"indptr": 1, "causal": True}
    with pytest.raises(Unsupported, match=r"Wrapper\.plan has no argument window"):
        bind(old, "Wrapper.plan", {"indptr": 1, "window": 2})
    with pytest.raises(TypeError, match="missing"):
        bind(old, "Wrapper", {"backend": "fa2"})


def test_objects_are_made_and_asked_in_the_same_way(old: str) -> None:
    wrapper = call(old, "Wrapper", workspace=1, jit_args=None)
    call_method(wrapper, "plan", indptr=3, causal=True, window=None)
    assert (wrapper.workspace, wrapper.planned) == (1, 6)
    with pytest.raises(Unsupported, match=r"Wrapper\.plan has no argument window"):
        call_method(wrapper, "plan", indptr=3, window=1)
    with pytest.raises(Unsupported, match="Wrapper has no method replan"):
        call_method(wrapper, "replan")


def test_decorators_of_the_installed_release_keep_its_signatures() -> None:
    pytest.importorskip("flashinfer")
    arguments = dict.fromkeys(["query", "kv_cache", "workspace_buffer", "block_tables", "seq_lens", "max_seq_len"], 0)
    assert bind("flashinfer.decode", "trtllm_batch_decode_with_kv_cache", arguments) == arguments
    assert version()


def test_a_method_takes_the_arguments_of_the_overridden_one_that_it_passes_on(old: str) -> None:
    wrapper = call(old, "SinkWrapper", workspace=1)
    call_method(wrapper, "plan", 2, 3, scale=2, causal=True, window=None)
    assert wrapper.planned == 20
    with pytest.raises(Unsupported, match=r"SinkWrapper\.plan has no argument window$"):
        call_method(wrapper, "plan", 2, window=3)
