"""Stands for a backend with the named defect: `defective_backend.py:NAN_ROW` has a row of NaN, NONE has no defect."""

import ctypes
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from attnfuzz.harness.inside.launcher import LaunchError
from attnfuzz.kernels.interface.backend import Attended, Bench, Fill, Op, Output, Unsupported
from attnfuzz.kernels.planning.queries import draw_queries
from attnfuzz.kernels.planning.slot_tokens import SlotTokens
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import NoiseModel

LONG = 5
"""Keys from which on LONG_KV goes wrong."""

LUCKY_SEED = 7


@dataclass(frozen=True)
class Launch:
    """The tensors of one launch: queries, one set of keys and values per query, and the results."""

    query: torch.Tensor
    kv_lens: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor
    seed: int


def sleep_for_ever(_: Launch) -> None:
    while True:
        time.sleep(1)


def reject(_: Launch) -> None:
    raise ValueError("head dim 8 is unsupported")


def fail(_: Launch) -> None:
    raise RuntimeError("cannot allocate")


def answer_without_keys(launch: Launch) -> None:
    launch.out[: len(launch.kv_lens)][launch.kv_lens == 0] = 1.0


class Used:
    """Launches of this process."""

    launches = 0
    spoilt = False


def spoil(_: Launch) -> None:
    Used.spoilt = True


def wrong_where_spoilt(launch: Launch) -> None:
    if Used.spoilt:
        launch.out[0] = torch.nan


def wrong_in_a_used_process(launch: Launch) -> None:
    Used.launches += 1
    if Used.launches > 1:
        launch.out[0] = torch.nan


# What a launch does after it has computed the right thing.
KERNEL_DEFECTS: dict[str, Callable[[Launch], object]] = {
    "SEGFAULT": lambda launch: ctypes.string_at(launch.query.data_ptr() + launch.query.nbytes + 24, 1),
    "DIVISION": lambda _: signal.raise_signal(signal.SIGFPE),
    "ABORT": lambda _: os.abort(),
    "KILLED": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "HANG": sleep_for_ever,
    "SLOW": lambda _: time.sleep(0.3),
    "REJECTION": reject,
    "KERNEL_ERROR": fail,
    "MUTATED_INPUT": lambda launch: launch.query[1].zero_(),
    "CANARY": lambda launch: ctypes.memset(launch.out.data_ptr() - 3, 0, 2),
    "NAN_ROW": lambda launch: launch.out[0].fill_(torch.nan),
    "PADDED_NAN": lambda launch: launch.out[len(launch.kv_lens) :].fill_(torch.nan),
    "WRONG_ROW": lambda launch: launch.out[0].add_(1.0),
    "LSE_BASE": lambda launch: launch.lse.mul_(math.log(2)),
    "EMPTY_ROW": answer_without_keys,
    "LONG_KV": lambda launch: launch.out[0].add_(1.0) if launch.kv_lens[0] >= LONG else None,
    "LUCKY_MISMATCH": lambda launch: launch.out[0].add_(1.0) if launch.seed == LUCKY_SEED else None,
    "LUCKY_NAN": lambda launch: launch.out[0].fill_(torch.nan) if launch.seed == LUCKY_SEED else None,
    "USED_PROCESS": wrong_in_a_used_process,
    "SPOILS_ITS_PROCESS": spoil,
    "WRONG_WHERE_SPOILT": wrong_where_spoilt,
}


class Session:
    """One decode after another; requests are dense, so that each has its keys and values to itself."""

    def __init__(self, defect: str, case: Case, bench: Bench, op: Op) -> None:
        if defect == "OPEN":
            raise KeyError("no room")
        self._defect, self._case, self._bench, self._op = defect, case, bench, op
        self._tokens = SlotTokens.cached(case)

    def forward(self, index: int) -> Output:
        """Run one step."""
        step, geometry, memory = self._case.steps[index], self._case.geometry, self._bench.memory
        if self._defect == "PLANNER":
            raise KeyError("no plan")
        if self._defect == "HARNESS":
            raise LaunchError("a fault of the harness")
        if self._defect == "UNSUPPORTED":
            raise Unsupported("there is no kernel for this")
        query = memory.copy("query", draw_queries(self._case, index, step.padded_tokens, geometry.head_dim_qk))
        shape = (step.padded_tokens, geometry.q_heads, geometry.head_dim_vo)
        if self._defect == "NAN_QUERY":
            query[0] = torch.nan
        out = memory.tensor("out", shape, geometry.dtype.torch_dtype, fill=Fill.OUTPUT)
        lse = memory.tensor("lse", shape[:2], torch.float32, fill=Fill.OUTPUT)
        kv_lens = torch.tensor([request.kv_len for request in step.requests], dtype=torch.int32)
        keys = [self._tokens.keys(request.slot, request.kv_len) for request in step.requests]
        values = [self._tokens.values(request.slot, request.kv_len) for request in step.requests]
        if self._defect == "UNGUARDED":
            query = query.clone()
        scale = 1 / math.sqrt(geometry.head_dim_qk)
        self._bench.launcher.launch(
            self._op,
            query=query,
            keys=tuple(memory.copy("key", key) for key in keys),
            values=tuple(memory.copy("value", value) for value in values),
            kv_lens=memory.copy("kv_lens", kv_lens),
            out=out,
            lse=lse,
            scale=scale,
            seed=self._case.seed,
            options=torch.float32 if self._defect == "OPTIONS" else None,
        )
        if self._defect == "PLANNER_LATER":
            raise ValueError("cannot unpack")
        if self._defect == "POSTPROCESSED":
            out.mul_(1.0).add_(1.0)
        out[len(kv_lens) :].nan_to_num_(5.0 if self._defect != "PADDED_NAN" else torch.nan)
        attended = tuple(
            Attended(first_row=row, query=query[row : row + 1], key=key, value=value)
            for row, (key, value) in enumerate(zip(keys, values, strict=True))
        )
        return Output(out=out, lse=lse, attended=attended, bmm1_scale=scale, bmm2_scale=1.0)


@dataclass(frozen=True)
class Backend:
    """Decode of any batch in plain torch, with a defect."""

    name: str
    capability: Capability = Capability(modes=(Mode.DECODE,), layouts=tuple(KvLayout), padding=True)
    contract: Contract = Contract(lse=LseBase.TWO)

    def noise(self, dtype: DType) -> NoiseModel:
        """That of fp32 arithmetic."""
        if self.name == "NOISE":
            raise ZeroDivisionError("no noise is known")
        return NoiseModel.fp32_arithmetic()

    @property
    def ops(self) -> Mapping[str, Op]:
        """The one kernel."""
        return {"attend": Op("attend", self.attend, frozenset({"out", "lse"}))}

    def attend(
        self,
        *,
        query: torch.Tensor,
        keys: tuple[torch.Tensor, ...],
        values: tuple[torch.Tensor, ...],
        kv_lens: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        scale: float,
        seed: int,
        options: torch.dtype | None,
    ) -> None:
        """Attention of one query to each request's keys, and the defect."""
        del options
        for row, (key, value) in enumerate(zip(keys, values, strict=True)):
            if self.name == "UNWRITTEN" and row == len(keys) - 1:
                continue
            heads = query.shape[1] // key.shape[1]
            k, v = (x.float().repeat_interleave(heads, dim=1) for x in (key, value))
            logits = scale * torch.einsum("hd,nhd->hn", query[row].float(), k)
            lse[row] = torch.logsumexp(logits, dim=1) / math.log(2)
            weights = torch.softmax(logits, dim=1)
            out[row] = torch.einsum("hn,nhd->hd", weights, v)
        defect = KERNEL_DEFECTS.get(self.name)
        if defect is not None:
            defect(Launch(query, kv_lens, out, lse, seed))

    def missing(self) -> str | None:
        """Why it can't run."""
        return "buy a faster machine" if self.name == "MISSING" else None

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Nothing to compile."""

    def open(self, case: Case, bench: Bench) -> Session:
        """A session on one case."""
        return Session(self.name, case, bench, self.ops["attend"])


def __getattr__(name: str) -> Backend:
    if not name.isupper():
        raise AttributeError(name)
    return Backend(name)
