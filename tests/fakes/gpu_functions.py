"""Stands for functions of users on a GPU: attention in torch, correct, or with a bad access or call at its end.

Named by their file, as users' backends are: gpu_functions.py:ATTENDS.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnfuzz.kernels.cuda import nvcc
from attnfuzz.kernels.cuda.stray import stray
from attnfuzz.kernels.functions.function_backend import FunctionBackend, FunctionSession
from attnfuzz.kernels.interface.backend import Bench, Op, Output
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.device import Device

UNLAUNCHED_SOURCE = Path(__file__).with_name("unlaunched.cu")

_FAR = 1 << 30
"""Bytes: farther than any tensor of a test's is large, and still in what lies between them."""


def attend(
    *,
    out: torch.Tensor,
    lse: torch.Tensor,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cum_seq_lens_q: torch.Tensor,
    scale: float,
    kv_layout: str,
    **_: Any,
) -> None:
    """Causal attention in fp64, request by request, with lse in base 2."""
    if kv_layout == "HND":
        k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    page, ends = k_cache.shape[1], cum_seq_lens_q.tolist()
    for request, kv_len in enumerate(seq_lens.tolist()):
        rows = slice(ends[request], ends[request + 1])
        pages = block_tables[request, : -(-kv_len // page)].long()
        q = query[rows].double()
        group = q.shape[1] // k_cache.shape[2]
        key, value = (
            cache[pages].flatten(0, 1)[:kv_len].double().repeat_interleave(group, 1) for cache in (k_cache, v_cache)
        )
        logits = torch.einsum("qhd,khd->qhk", q, key) * scale
        last = torch.arange(kv_len - len(q), kv_len, device=q.device)
        hidden = torch.arange(kv_len, device=q.device) > last[:, None]
        logits.masked_fill_(hidden[:, None], -torch.inf)
        total = logits.logsumexp(-1)
        weights = (logits - total[..., None]).exp().nan_to_num(0.0)
        out[rows] = torch.einsum("qhk,khd->qhd", weights, value).to(out.dtype)
        lse[rows] = (total / math.log(2)).float()


def backend(name: str, then: Callable[[dict[str, Any]], object]) -> FunctionBackend:
    """Attention, and `then` something with its arguments."""

    def function(**arguments: Any) -> None:
        attend(**arguments)
        then(arguments)

    function.__name__ = name
    return FunctionBackend(
        function,
        capability=Capability(device=Device.CUDA, modes=Mode.of_kernels()),
        contract=Contract(lse=LseBase.TWO),
    )


def read_far(tensor: torch.Tensor) -> None:
    """Read where there is no memory."""
    stray(tensor, _FAR, write=False)


def _assert_on_device(arguments: dict[str, Any]) -> None:
    query = arguments["query"]
    torch.zeros(4, device=query.device)[torch.tensor([100], device=query.device)].sum()


def _leave_a_launch_unchecked(arguments: dict[str, Any]) -> None:
    del arguments
    nvcc.load(UNLAUNCHED_SOURCE).unlaunched()


def _reject(arguments: dict[str, Any]) -> None:
    raise ValueError(f"no kernel for {len(arguments)} arguments")


ATTENDS = backend("attends", lambda _: None)
READS_FAR = backend("reads_far", lambda given: read_far(given["query"]))
WRITES_FAR = backend("writes_far", lambda given: stray(given["out"], _FAR, write=True))
MISALIGNED = backend("misaligned", lambda given: stray(given["query"], 1, write=False))
ASSERTS = backend("asserts", _assert_on_device)
HANGS = backend("hangs", lambda _: torch.cuda._sleep(10**13))
REJECTS = backend("rejects", _reject)
UNLAUNCHED = backend("unlaunched", _leave_a_launch_unchecked)
TAKES_TOO_MUCH = backend("takes_too_much", lambda given: torch.empty(1 << 42, device=given["query"].device))
CHANGES_ITS_INPUT = backend("changes_its_input", lambda given: given["query"].view(-1)[3:4].add_(1))


class _HastySession(FunctionSession):
    """Reads far outside of a tensor by itself, a while after its kernel is queued behind that."""

    def forward(self, index: int) -> Output | None:
        beside = self._bench.memory.tensor("beside", (1,), torch.float32)
        torch.cuda._sleep(10**8)
        read_far(beside)
        return super().forward(index)


@dataclass(frozen=True)
class _HastyBackend(FunctionBackend):
    def open(self, case: Case, bench: Bench) -> FunctionSession:
        return _HastySession(self, case, bench)


def _writes_zeros(*, out: torch.Tensor, lse: torch.Tensor, **_: Any) -> None:
    """Queue, without a wait."""
    out.zero_()
    lse.zero_()


class _QueueingSession(FunctionSession):
    """Queues a kernel that ends well, one that does not, and its own."""

    def forward(self, index: int) -> Output | None:
        beside = self._bench.memory.tensor("beside", (64,), torch.float32)
        backend = self._backend
        assert isinstance(backend, _QueueingBackend)
        for op in (Op("fills", lambda *, beside: beside.zero_(), frozenset({"beside"})), backend.second):
            self._bench.launcher.launch(op, beside=beside)
        return super().forward(index)


@dataclass(frozen=True, kw_only=True)
class _QueueingBackend(FunctionBackend):
    second: Op

    def open(self, case: Case, bench: Bench) -> FunctionSession:
        return _QueueingSession(self, case, bench)


def _queueing(name: str, second: Callable[[torch.Tensor], object]) -> FunctionBackend:
    op = Op(name, lambda *, beside: second(beside), frozenset({"beside"}))
    return _QueueingBackend(_writes_zeros, capability=ATTENDS.capability, contract=ATTENDS.contract, second=op)


SECOND_FAULTS = _queueing("second", lambda beside: stray(beside, _FAR, write=True))
SECOND_HANGS = _queueing("second", lambda _: torch.cuda._sleep(10**13))

FAULTS_BEFORE = _HastyBackend(_writes_zeros, capability=ATTENDS.capability, contract=ATTENDS.contract)
