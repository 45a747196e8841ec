"""FlashInfer's kernels of recurrent state: calls bind the installed signatures, and pass on native kernels."""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnfuzz.harness.families.recurrent import RECURRENT as FAMILY
from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.search.examples import run_examples
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.gpu.direct import recurrent
from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native import recurrent_ops as native
from attnfuzz.kernels.recurrent.backend import StateBackend
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recurrent.case import StateCase
from attnfuzz.reference.recurrent.values import NORM_EPSILON
from attnfuzz.strategies.lean import NO_LEAN

pytest.importorskip("flashinfer")

JIT = "flashinfer.jit.mamba"


def rows_of(count: int, tokens: int = 1) -> torch.Tensor:
    return torch.arange(count + 1, dtype=torch.int32) * tokens


def update(given: dict[str, Any]) -> None:
    slots, targets, starts = (given[name] for name in ("state_batch_indices", "dst_state_batch_indices", "cu_seqlens"))
    for name in ("dt", "D", "dt_bias", "A"):
        assert given[name].stride(-1) == 0
    assert given["dt"].dtype == given["D"].dtype == given["dt_bias"].dtype
    shared = {
        **{name: given[name] for name in ("x", "B", "C", "z", "out")},
        "dt": given["dt"][..., 0],
        "A": given["A"][:, 0, 0],
        "D": given["D"][:, 0],
        "dt_bias": given["dt_bias"][:, 0],
        "state": given["state"],
    }
    if starts is None:
        known = torch.ones(len(slots), dtype=torch.bool)
        one = {"slots": slots.contiguous(), "target_slots": targets.contiguous(), "cu_seqlens": rows_of(len(slots))}
        native.selective_scan(**shared, **one, has_initial_state=known)
    else:
        assert given["cache_steps"] == slots.shape[1] == targets.shape[1]
        native.selective_scan_verify(
            **shared,
            draft_slots=slots,
            draft_targets=targets,
            cu_seqlens=starts,
            num_accepted=given["num_accepted_tokens"],
        )


def delta(given: dict[str, Any]) -> dict[str, Any]:
    return {
        "query": given["q"].flatten(0, 1),
        "key": given["k"].flatten(0, 1),
        "value": given["v"].flatten(0, 1),
        "a": given["a"].flatten(0, 1),
        "b": given["b"].flatten(0, 1),
        "out": given["output"].flatten(0, 1),
        "state": given["initial_state"],
        "eps": NORM_EPSILON,
        "normed": given["use_qk_l2norm"],
        **{name: given[name] for name in ("A_log", "dt_bias", "scale")},
    }


def decode(given: dict[str, Any]) -> None:
    slots, targets = given["initial_state_indices"], given["output_state_indices"]
    native.gated_delta_rule(
        **delta(given),
        slots=slots,
        target_slots=targets,
        cu_seqlens=rows_of(len(slots)),
        has_initial_state=torch.ones(len(slots), dtype=torch.bool),
    )


def mtp(given: dict[str, Any]) -> None:
    read, targets = given["initial_state_indices"], given["ssm_state_indices"]
    assert given["disable_state_update"] is False
    assert given["intermediate_states_buffer"] is None
    assert given["output_state_indices"].equal(targets[:, -1])
    # The state that is read, as the first of those after each token.
    slots = torch.cat((read.int()[:, None], targets[:, 1:]), 1)
    native.gated_delta_rule_verify(
        **delta(given),
        draft_slots=slots,
        draft_targets=targets,
        cu_seqlens=rows_of(*targets.shape),
        num_accepted=torch.ones(len(targets), dtype=torch.int32),
    )


def prefill(given: dict[str, Any]) -> None:
    assert given["gate_domain"] == "linear"
    assert given["initial_state"] is given["output_state"]
    read, targets = given["state_indices"], given["output_state_indices"]
    native.given_delta_rule(
        query=given["q"],
        key=given["k"],
        value=given["v"],
        log_decay=given["g"].log(),
        beta=given["beta"],
        state=given["initial_state"],
        slots=torch.where(read < 0, targets, read),
        target_slots=targets,
        cu_seqlens=given["cu_seqlens"],
        has_initial_state=read >= 0,
        out=given["output"],
        scale=given["scale"],
        eps=NORM_EPSILON,
        normed=given["use_qk_l2norm_in_kernel"],
    )


def with_keys_first(function: Callable[[dict[str, Any]], None], given: dict[str, Any], name: str) -> None:
    """Run a stand-in on a pool in the layout of native kernels, in which keys come before values."""
    swapped = given[name]
    pool = swapped.transpose(-1, -2).contiguous()
    function({each: pool if value is swapped else value for each, value in given.items()})
    swapped.copy_(pool.transpose(-1, -2))


STAND_INS = {
    "selective_state_update": (update, "state"),
    "gated_delta_rule_decode_pretranspose": (decode, "initial_state"),
    "gated_delta_rule_mtp": (mtp, "initial_state"),
    "chunk_gated_delta_rule": (prefill, "initial_state"),
}


def call(module: str, name: str, /, **arguments: Any) -> None:
    signature = inspect.signature(getattr(importlib.import_module(module), name))
    if "output_state_indices" in arguments.keys() - signature.parameters.keys():
        # As flashinfer_op.call: 0.7.2 has no slots to write in a prefill.
        raise Unsupported("since 0.7.4")
    bound = signature.bind(**arguments)
    bound.apply_defaults()
    function, pool = STAND_INS[name]
    with_keys_first(function, bound.arguments, pool)


@pytest.mark.slow
@pytest.mark.parametrize("backend", recurrent.backends(), ids=lambda backend: backend.name)
def test_drawn_cases_pass_on_native_kernels_behind_the_installed_signatures(
    backend: StateBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow, because FlashInfer is imported, and dims are those of models."""
    build.load()
    monkeypatch.setattr(recurrent, "call", call)
    on_cpu = replace(backend, capability=replace(backend.capability, device=Device.CPU))
    found: list[StateCase] = []
    run_examples(FAMILY.cases(backend.capability, backend.name, NO_LEAN), found.append, examples=8, seed_of=1)
    supported = 0
    for case in found:
        case.validate()
        assert backend.capability.why_not(case) is None
        run = Execution(Task(case=case, backend=backend.name), lambda _: None, backend=on_cpu)  # type: ignore[arg-type]
        verdict = run.run()
        assert verdict.failures == (), FAMILY.describe(case)
        if verdict.unsupported == "since 0.7.4":
            pytest.skip(verdict.unsupported)
        supported += verdict.unsupported is None
    assert supported


def test_kernels_in_cute_get_parameters_and_indices_where_torch_would_allocate_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 0.7.4: "Misaligned Tensor data on argument #9 ..., expected data alignment=16 bytes", and 32 with 16-bit states.
    def beside(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor.new_zeros(1), tensor])[1:]

    seen: dict[str, Any] = {}
    monkeypatch.setattr(recurrent, "call", lambda *_names, **given: seen.update(given))
    rows = torch.zeros(2, 4, 128, dtype=torch.bfloat16)
    recurrent.delta_decode(
        query=rows,
        key=rows,
        value=rows,
        A_log=beside(torch.zeros(4)),
        a=rows[..., 0],
        b=rows[..., 0],
        dt_bias=beside(torch.zeros(4, dtype=torch.bfloat16)),
        state=torch.zeros(3, 4, 128, 128),
        slots=beside(torch.tensor([1, 2], dtype=torch.int32)),
        target_slots=beside(torch.tensor([2, 1], dtype=torch.int32)),
        out=rows,
        scale=1.0,
        normed=False,
    )
    given = [seen[name] for name in ("A_log", "dt_bias", "initial_state_indices", "output_state_indices")]
    assert [tensor.data_ptr() % 32 for tensor in given] == [0, 0, 0, 0]
    assert [seen["initial_state_indices"].tolist(), seen["output_state_indices"].tolist()] == [[1, 2], [2, 1]]


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
def test_the_compiled_modules_are_those_that_calls_load(
    drafts: int, state_dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that loads another one compiles it in a worker, which takes a minute."""
    names = [*inspect.signature(importlib.import_module(JIT).gen_selective_state_update_sm90_module).parameters]
    loaded: dict[str, Any] = {}

    def load(_device: object, *positional: Any, **keywords: Any) -> Any:
        asked = [name for name in names if name != "state_scale_dtype"]
        loaded.update(zip(asked, positional, strict=False), **keywords)
        return SimpleNamespace(selective_state_update=lambda *_: None)

    module = importlib.import_module("flashinfer.mamba.selective_state_update")
    monkeypatch.setattr(module, "get_selective_state_update_module", load)
    built: dict[str, Any] = {}
    monkeypatch.setattr(f"{JIT}.gen_selective_state_update_sm90_module", lambda **given: built.update(given))
    narrow: dict[str, Any] = {"dtype": torch.bfloat16}
    rows = torch.zeros(1, 1 + drafts, dtype=torch.int32)
    recurrent.selective_state_update(
        x=torch.zeros(1, 2, 64, **narrow),
        dt=torch.zeros(1, 2, **narrow),
        A=torch.zeros(2),
        B=torch.zeros(1, 1, 128, **narrow),
        C=torch.zeros(1, 1, 128, **narrow),
        D=torch.zeros(2, **narrow),
        dt_bias=torch.zeros(2, **narrow),
        z=None,
        state=torch.zeros(3, 2, 64, 128, dtype=state_dtype),
        draft_slots=rows,
        draft_targets=rows,
        cu_seqlens=torch.tensor([0, 1], dtype=torch.int32),
        num_accepted=torch.ones(1, dtype=torch.int32),
        out=torch.zeros(1, 2, 64, **narrow),
        verifies=bool(drafts),
    )
    state = next(each for each in DType if each.torch_dtype == state_dtype)
    recurrent._spec(state, 1 + drafts)
    assert built == {name: loaded[name] for name in built}
