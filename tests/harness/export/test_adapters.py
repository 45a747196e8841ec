"""Functions between a backend and a library are in its scripts, with all that they need of ours."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from small_cases import drawn, in_memory, narrowest

from attnfuzz.harness.export import CannotExport, adapters, export_script
from attnfuzz.harness.export.adapters import SCRIPT_NAMES, Adapters, renamed
from attnfuzz.harness.export.proof import prove
from attnfuzz.harness.export.target import own_function
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.kernels.defects.catalogue import planted
from attnfuzz.kernels.gpu.direct.cudnn import DECODE_OP
from attnfuzz.kernels.gpu.direct.torch_attention import CUDNN
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.libraries.torch_sdpa import SDPA
from attnfuzz.kernels.releases import flash_attention, planned_runs
from attnfuzz.kernels.vllm import hopper, stand_ins
from attnfuzz.kernels.vllm.dcp import kernels as dcp
from attnfuzz.kernels.vllm.mla import kernels as mla

EXPORT = Path(adapters.__file__).parent

ENGINE_OPS = (
    *(*flash_attention.OPS, *planned_runs.OPS, *mla.OPS, *dcp.OPS),
    *(hopper.XQA, hopper.QUANTISE, stand_ins.WRITE),
)
"""The ops that SGLang and vLLM run on without a GPU, beside the native ones."""


def test_an_adapter_brings_the_functions_that_it_calls_and_its_imports() -> None:
    found = Adapters()
    assert found.add("scaled_dot_product_attention[CUDNN_ATTENTION]", CUDNN.function) == (
        "scaled_dot_product_attention_CUDNN_ATTENTION"
    )
    defined = {node.name for node in ast.parse(found.source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert defined == {"attend_with", "attend_into", "Unsupported"}
    assert 'functools.partial(attend_with, "CUDNN_ATTENTION")' in found.source
    assert {"import torch", "import functools"} <= found.imports.keys()


def test_flashinfers_functions_are_called_without_ours() -> None:
    found = Adapters()
    assert found.add(DECODE_OP.name, DECODE_OP.function) == DECODE_OP.name
    assert "class flashinfer_op:" in found.source
    assert "attnfuzz" not in found.source


def test_an_object_that_a_script_cannot_create_is_refused() -> None:
    def local() -> None: ...

    with pytest.raises(CannotExport, match="local is no function of attnfuzz that a script can contain"):
        Adapters().add("local", local)


def test_a_function_made_around_another_comes_with_the_values_that_it_closes_over() -> None:
    """It has the name of the other one, which would be right."""
    op = next(iter(planted()["native:reshape_and_cache+negative_slot_taken_for_the_first"].ops.values()))
    (writer,) = (each for each in inspect.getclosurevars(op.function).nonlocals.values() if hasattr(each, "function"))
    known = Adapters(known=lambda function: "the_kernel" if function is writer.function else None)
    name = known.add(op.name, op.function)
    assert name == f"{op.name}_in_backend"
    assert "the_kernel(slot_mapping=" in known.source
    assert "slots.clamp(min=0)" in known.source
    assert "writer" not in known.source


@pytest.mark.slow
@pytest.mark.parametrize("op", ENGINE_OPS, ids=lambda op: op.name)
def test_a_script_can_contain_each_function_that_stands_in_below_an_engine(op: Op) -> None:
    found = Adapters(known=own_function)
    name = own_function(op.function) or found.add(op.name, op.function)
    assert name.isidentifier()
    assert "attnfuzz." not in found.source
    ast.parse(found.source)


def test_an_adapter_that_needs_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "MOST_LINES", 1)
    with pytest.raises(CannotExport, match="needs more than 1 lines of attnfuzz"):
        Adapters().add(SDPA.name, SDPA.function)


def test_names_are_changed_and_attributes_are_not() -> None:
    source = 'def put(x, put=1):\n    """put"""\n    return x.put(put) + é(put)\n'
    assert renamed(source, {"put": "own"}) == 'def own(x, put=1):\n    """put"""\n    return x.put(own) + é(own)\n'


def test_adapters_avoid_all_functions_of_scripts() -> None:
    found = {
        name for path in EXPORT.glob("*.j2") for name in re.findall(r"^def (\w+)\(", path.read_text(), re.MULTILINE)
    }
    assert found <= SCRIPT_NAMES


@pytest.mark.slow  # A script is a process.
@pytest.mark.parametrize("backend", ["torch:nested", "torch:index_put"])
def test_a_librarys_kernel_runs_in_a_script(runner: Runner, backend: str) -> None:
    case = next(
        case
        for case in narrowest(in_memory(drawn(backend, 7)), 9)
        if any(each.q_len and each.kv_len for each in case.steps[-1].requests)
    )
    proof = prove(export_script(case, runner), 100)
    assert proof.code == 0, proof.printed
