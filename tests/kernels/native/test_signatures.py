"""The native entry points against the signatures of the installed FlashInfer."""

import importlib
import inspect
from collections.abc import Mapping

import pytest

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.native.unsupported import ACCEPTED, OWN
from attnfuzz.kernels.releases.signatures import signatures

pytest.importorskip("flashinfer", reason="compares with the installed FlashInfer")

OPS = [op for op in NATIVE.ops() if op.module]


def flashinfer_parameters(op: Op) -> Mapping[str, inspect.Parameter]:
    assert op.module
    return inspect.signature(getattr(importlib.import_module(op.module), op.name)).parameters


def newest_parameters(op: Op) -> frozenset[str]:
    known = signatures(None).get(op.name)
    return frozenset() if known is None else frozenset(known.parameters)


def native_parameters(op: Op) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(op.function).parameters
    named = {name: each for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD}
    return {name: each for name, each in named.items() if name not in OWN}


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_argument_of_flashinfer_is_implemented_or_listed_as_unsupported(op: Op) -> None:
    native, unsupported = native_parameters(op).keys(), ACCEPTED.get(op.name, {}).keys()
    assert not native & unsupported
    assert flashinfer_parameters(op).keys() <= native | unsupported
    # The installed release may be older than the newest known one.
    assert native | unsupported <= flashinfer_parameters(op).keys() | newest_parameters(op)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_defaults_are_those_of_flashinfer(op: Op) -> None:
    theirs = flashinfer_parameters(op)
    ours = {name: each for name, each in native_parameters(op).items() if name in theirs}
    assert {name: each.default for name, each in ours.items()} == {name: theirs[name].default for name in ours}
    for name, harmless in ACCEPTED.get(op.name, {}).items():
        default = theirs[name].default if name in theirs else inspect.Parameter.empty
        assert default in harmless or default is inspect.Parameter.empty


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_positional_arguments_have_the_order_of_flashinfer(op: Op) -> None:
    names = [name for name, p in native_parameters(op).items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert names == list(flashinfer_parameters(op))[: len(names)]


@pytest.mark.parametrize("op", NATIVE.ops(), ids=lambda op: op.name)
def test_written_arguments_are_parameters_of_the_op(op: Op) -> None:
    assert op.writes
    assert op.writes <= native_parameters(op).keys()
