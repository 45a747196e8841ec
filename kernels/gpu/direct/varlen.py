"""torch.nn.attention.varlen: FlashAttention on packed keys and values, one call per step.

Arguments are bound to the signature of the installed torch, and one that it lacks is Unsupported, with its name:
`scale` and `window_size` came with 2.11, `enable_gqa`, `seqused_k` and `num_splits` with 2.12.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from attnfuzz.kernels.arguments.edges import UNSAID_FACTORS
from attnfuzz.kernels.gpu.direct.torch_attention import SDPA_FLASH, dense_buckets
from attnfuzz.kernels.gpu.flashinfer_op import accepted
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.interface.backend import Fill, Op, Output, Unsupported
from attnfuzz.kernels.libraries.torch_sdpa import SdpaSession
from attnfuzz.kernels.planning.lengths import place_int32, running_sum
from attnfuzz.reference.arguments import ArgumentForm, ArgumentStanding, Rules, promised, refused, unsaid
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mask, Mode, QueryView, Step
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.edges import Edge, EdgeRule
from attnfuzz.reference.masks import applies

_MODULE: Final = "torch.nn.attention.varlen"


def _called(name: str, arguments: Mapping[str, Any]) -> Any:
    """Call the installed function `name`. Absent options are None, and a window is the number of keys to the left."""
    if (lacking := unreleased(name)) is not None:
        raise Unsupported(lacking)
    module = importlib.import_module(_MODULE)
    function: Callable[..., Any] = getattr(module, name)
    given = {argument: value for argument, value in arguments.items() if value is not None}
    with_lse = given.pop("return_lse", False)
    if with_lse:
        given["return_aux"] = module.AuxRequest(lse=True)
    given |= _window(given.pop("window_left", None), given.pop("window_right", -1), causal=given.pop("causal"))
    taken, unknown = accepted(function, given)
    if unknown:
        raise Unsupported(f"torch {torch.__version__}: {name} has no argument {', '.join(unknown)}")
    return function(**taken)


def unreleased(name: str) -> str | None:
    """State why the installed torch has no function `name`, in a line; None if it has."""
    loaded = sys.modules.get(_MODULE)
    # One that is not defined there may still be imported by it.
    there = hasattr(loaded, name) if loaded is not None else _defines(name) or hasattr(_imported(), name)
    return None if there else f"torch {torch.__version__} has no {_MODULE}.{name}"


def _imported() -> Any:
    """Return torch's module; None if the installed torch has none."""
    try:
        return importlib.import_module(_MODULE)
    except ModuleNotFoundError:
        return None


def _defines(name: str) -> bool:
    """Return whether the source of torch's module has a function `name`: an import takes 2 s, for torch's compiler."""
    spec = importlib.util.find_spec(_MODULE)
    return spec is not None and f"\ndef {name}(" in Path(str(spec.origin)).read_text()


def _window(left: int | None, right: int, *, causal: bool) -> dict[str, tuple[int, int]]:
    """Return the window (left, right), by default full attention. Without a `left`, only a causal call needs one."""
    if left is None and not causal:
        return {}
    return {"window_size": (-1 if left is None else left, 0 if causal else right)}


def attend_varlen(*, out: torch.Tensor, lse: torch.Tensor | None = None, **arguments: Any) -> None:
    """Write varlen_attn to `out`, and its LSE to `lse` [tokens, heads].

    The docstring says that the LSE is [tokens, heads]. It is [heads, tokens]: so the shape that torch registers for
    tracing (_varlen_attn_fake, 2.13) and the kernel's (flash_api.cpp, mha_varlen_fwd).
    """
    returned = _called("varlen_attn", {**arguments, "return_lse": lse is not None})
    if lse is None:
        out.copy_(returned)
    else:
        out.copy_(returned[0])
        lse.copy_(returned[1].T)


def attend_varlen_out(*, out: torch.Tensor, **arguments: Any) -> None:
    """Call varlen_attn_out, which writes `out` itself."""
    _called("varlen_attn_out", {**arguments, "out": out})


VARLEN: Final = Op("varlen_attn", attend_varlen, frozenset({"out", "lse"}), _MODULE)
VARLEN_OUT: Final = Op("varlen_attn_out", attend_varlen_out, frozenset({"out"}), _MODULE)


class VarlenSession(SdpaSession):
    """A session with one call per step, on the keys and values of all requests one after another."""

    op: Op = VARLEN

    def _compute(self, step: Step, query: torch.Tensor, out: torch.Tensor) -> None:
        self._bench.launcher.launch(self.op, out=out, query=query, **self._packed(step))

    def _packed(self, step: Step) -> dict[str, Any]:
        bench, geometry, forms = self._bench, self._case.geometry, self._case.arguments
        key, value = self._tokens.packed(step)
        q_lens = [request.q_len for request in step.requests]
        kv_lens = [request.kv_len for request in step.requests]
        given: dict[str, Any] = {"enable_gqa": True} if geometry.group > 1 else {}
        if ArgumentForm.KEY_LENGTHS_GIVEN in forms:
            given["seqused_k"] = place_int32(bench, "seqused_k", kv_lens)
        if ArgumentForm.SPLIT_DISABLED in forms:
            given["num_splits"] = 1
        return {
            "key": bench.memory.copy("key", key),
            "value": bench.memory.copy("value", value),
            "cu_seq_q": place_int32(bench, "cu_seq_q", running_sum(q_lens)),
            "cu_seq_k": place_int32(bench, "cu_seq_k", running_sum(kv_lens)),
            "max_q": max(q_lens, default=0),
            "max_k": max(kv_lens, default=0),
            "scale": self._scale,
            "window_left": geometry.window_left,
            "window_right": geometry.window_right,
            "causal": not applies(self._case, step),
            **given,
        }


class VarlenLseSession(VarlenSession):
    """The same with the LSE of each row."""

    def forward(self, index: int) -> Output:
        """Run one step."""
        rows = self._case.steps[index].padded_tokens, self._case.geometry.q_heads
        self._lse = self._bench.memory.tensor("lse", rows, torch.float32, fill=Fill.OUTPUT)
        return replace(super().forward(index), lse=self._lse)

    def _packed(self, step: Step) -> dict[str, Any]:
        return {**super()._packed(step), "lse": self._lse}


class VarlenOutSession(VarlenSession):
    """A session on the function with an output argument."""

    op: Op = VARLEN_OUT


_F = ArgumentForm
_CHECKS: Final = "aten, transformers/cuda/flash_attn/flash_api.cpp (mha_varlen_fwd), checks: "
ARGUMENTS: Final[Rules] = (
    *refused(f"{_CHECKS}cu_seqlens_q must have dtype int32", _F.QUERY_STARTS_INT64),
    *refused(f"{_CHECKS}CHECK_CONTIGUOUS of both cu_seqlens", _F.QUERY_STARTS_GAPS, _F.KEY_STARTS_GAPS),
    *refused(f"{_CHECKS}contiguous last dimension", _F.QUERY_ELEMENTS_APART),
    *unsaid(_F.KEYS_GAPS, _F.VALUES_GAPS, _F.SCALE_TENSOR, _F.WINDOW_FAR),
    *promised('docstring: "scale (float, optional)"', _F.SCALE_DEFAULT),
    *promised('docstring of window_size: "(-1, -1) for full attention (default)"', _F.WINDOW_DEFAULT),
    *promised("docstring of seqused_k: the number of valid KV tokens of each sequence", _F.KEY_LENGTHS_GIVEN),
    *promised('docstring of num_splits: "Set to 1 to disable split-KV"', _F.SPLIT_DISABLED),
)
"""varlen_attn, whose output and LSE are always returned."""
OUT_ARGUMENTS: Final[Rules] = (*ARGUMENTS, *unsaid(_F.OUT_GAPS, _F.OUT_HEADS_FIRST))
"""varlen_attn_out."""

_IDLE: Final = EdgeRule(Edge.IDLE, ArgumentStanding.REFUSED, f"{_CHECKS}batch size must be positive")


class VarlenBackend(GpuBackend):
    """A backend on a function that early releases of torch lack."""

    def missing(self) -> str | None:
        """See `GpuBackend`."""
        return super().missing() or unreleased(self.kernels[0].name)


def _backend(name: str, session: type[VarlenSession], rules: Rules, contract: Contract) -> GpuBackend:
    return VarlenBackend(
        name=name,
        archs=SDPA_FLASH.archs,
        capability=Capability(
            device=Device.CUDA,
            edges=(*UNSAID_FACTORS, _IDLE),
            buckets=dense_buckets((DType.BFLOAT16, DType.FLOAT16), (64, 8, 72, 256), grouped=True, windows=True),
            modes=Mode.of_kernels(),
            query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
            arguments=rules,
            masks=(Mask.CAUSAL, Mask.FULL),
            windowed_masks=(Mask.CAUSAL, Mask.FULL),
            right_windows=True,
        ),
        contract=contract,
        session=session,
        kernels=(session.op,),
        theoretical=SDPA_FLASH.theoretical,
        needs=(),
    )


# seqused_k, block_table and num_splits are arguments of paged calls too; those need pages of 256 keys.
VARLEN_ATTN: Final = _backend("varlen_attn", VarlenSession, ARGUMENTS, Contract())
VARLEN_ATTN_LSE: Final = _backend("varlen_attn_lse", VarlenLseSession, ARGUMENTS, Contract(lse=LseBase.E))
VARLEN_ATTN_OUT: Final = _backend("varlen_attn_out", VarlenOutSession, OUT_ARGUMENTS, Contract())
