"""FlashInfer's batch_decode_with_kv_cache_mla_swa: latent decode in a sliding window on SM90, since 0.7.4.

It has six tactics (mla/_swa.py), chosen by an autotuner for a shape, or else by a table. Forms of a call force each.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import torch

from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.flashinfer_op import call
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.interface.backend import Bench, Op, Output, Session
from attnfuzz.kernels.interface.ops_table import OpsTable, WorkspaceBytes
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.trtllm.mla import DecodePlan, MlaSession
from attnfuzz.reference.arguments import TACTICS, ArgumentForm, promised
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout, Latent
from attnfuzz.reference.noise import NoiseModel

_MODULE: Final = "flashinfer.mla"
_NAME: Final = "batch_decode_with_kv_cache_mla_swa"

_BATCHES: Final = (16, 8, 4, 2, 1)
"""The numbers of requests that a call may have."""

_SPLITS, _ALIGNED = 9, 256


def decode(*, tactic: int | None = None, **arguments: Any) -> Any:
    """Call FlashInfer's function, with a tactic in place of the autotuner's choice. Returns its output."""
    if tactic is None:
        return call(_MODULE, _NAME, **arguments)
    with _forced(tactic):
        return call(_MODULE, _NAME, **arguments)


@contextmanager
def _forced(tactic: int) -> Iterator[None]:
    """Make the autotuner choose a tactic of this function."""
    tuner: Any = importlib.import_module("flashinfer.autotuner").AutoTuner.get()
    # An attribute of the object hides the method of its class.
    tuner.choose_one = lambda _, runners, *__: (runners[0], tactic)
    try:
        yield
    finally:
        del tuner.choose_one


DECODE: Final = Op(_NAME, decode, frozenset({"out", "workspace_buffer"}), _MODULE)


def workspace(batch: int, q_len: int, q_heads: int, rank: int) -> WorkspaceBytes:
    """Return the workspace of a call: partial outputs and LSEs of nine splits (get_mla_swa_workspace_size_bytes)."""
    partials = batch * q_len * q_heads * _SPLITS * 4
    sizes = (-(-size // _ALIGNED) * _ALIGNED for size in (partials * rank, partials))
    return WorkspaceBytes(semaphores=0, scratch=sum(sizes))


class MlaSwaSession(MlaSession):
    """A session of decodes and verify steps, in calls of 16, 8, 4, 2 and 1 requests, the largest first."""

    def __init__(self, case: Case, bench: Bench, op: Op = DECODE, ops: OpsTable = NATIVE) -> None:
        super().__init__(ops, case, bench)
        self._op = op

    def _decode(self, plan: DecodePlan, query: torch.Tensor, results: Results) -> None:
        batch = plan.seq_lens.shape[0]
        stride = query.shape[0] // batch if batch else 1
        whole, out = query.unflatten(0, (batch, stride)), results.out.unflatten(0, (batch, stride))
        need = workspace(min(batch, _BATCHES[0]), stride, query.shape[1], self._latent.rank)
        scratch, first = self._workspace.take(need), 0
        while first < batch:
            end = first + next(size for size in _BATCHES if size <= batch - first)
            self._bench.launcher.launch(
                self._op,
                query=whole[first:end],
                kv_cache=self._pool(),
                workspace_buffer=scratch,
                block_tables=plan.block_tables[first:end],
                seq_lens=plan.seq_lens[first:end],
                window_left=self._case.geometry.window_left,
                sm_scale=self._scales["bmm1_scale"],
                out=out[first:end],
            )
            first = end

    def _pool(self) -> torch.Tensor:
        """Return the pool as [pages, slots, rank + rope]."""
        assert isinstance(self._kv.cache, torch.Tensor)
        return self._kv.cache.squeeze(1) if self._kv.cache.ndim == 4 else self._kv.cache

    def _output(self, *args: Any) -> Output:
        return replace(super()._output(*args), lse=None)


def _spec() -> Any:
    from flashinfer.jit.mla import gen_mla_swa_sm90_module  # noqa: PLC0415 - only where it is compiled

    return gen_mla_swa_sm90_module()


_COMPILED: Final = Module("MLA in a sliding window", _spec)

# "B1/2/4/8/16 and q_len1/4", 64 query heads, and a window of 512 keys before a query's own.
_BUCKET: Final = Bucket(
    dtype=DType.BFLOAT16,
    kv_dtype=DType.BFLOAT16,
    head_dim_qk=1088,
    head_dim_vo=1024,
    heads=((64, 1),),
    page_sizes=(64,),
    layouts=(KvLayout.HND,),
    windows=(512,),
    latent=Latent(rank=1024, rope=64, nope=128, vo=128),
    strides=(4,),
)

_STEPS: Final = (Mode.DECODE, Mode.TARGET_VERIFY)


def _open(case: Case, bench: Bench) -> Session:
    return MlaSwaSession(case, bench)


MLA_SWA: Final = GpuBackend(
    name="mla_swa",
    archs=frozenset({Arch.HOPPER}),
    capability=Capability(
        device=Device.CUDA,
        buckets=(_BUCKET,),
        modes=_STEPS,
        graph_modes=_STEPS,
        padding=True,
        arguments=(
            *promised('docstring: "search the six tactics"', *TACTICS),
            *promised('docstring of out: "If omitted, allocated"', ArgumentForm.OUT_RETURNED),
        ),
    ),
    contract=Contract(),
    session=_open,
    kernels=(DECODE,),
    modules_of=lambda _: (_COMPILED,),
    # Its docstring says that partial sums are in fp32, but not in which dtype weights enter the second product.
    theoretical=lambda _: NoiseModel.unknown_kernel(),
)
