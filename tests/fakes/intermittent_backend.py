"""Stands for a kernel that is rarely wrong: `intermittent_backend.py:RANDOM_17_NAN`, on a GPU `RANDOM_17_NAN_CUDA`.

The first part of a name says when a launch is wrong: RANDOM_N at random, once in N; EVERY_N at every N-th launch of the
process; AFTER_1 in each launch after one of a batch of at least `MANY` requests. The next says in what way: NAN is a
row of NaN, WRONG a row that is off, FAULT an access that ends the process.
"""

import ctypes
import random
from dataclasses import dataclass
from typing import Any

import gpu_functions
import torch
from defective_backend import Backend as DecodeBackend

from attnfuzz.kernels.functions.function_backend import FunctionBackend

MANY = 6

_ON_GPU = "_CUDA"

_chance = random.SystemRandom()
"""Workers are forked: any other generator would give each the same numbers."""


class Process:
    """What this process has launched."""

    launches = 0
    had_many = False


def may_go_wrong(name: str, requests: int, query: torch.Tensor, out: torch.Tensor) -> None:
    """Count a launch for this many requests, and make the mistake of this name if it is time for one."""
    Process.launches += 1
    when, count, what = name.split("_")
    if not _is_time(when, int(count)):
        Process.had_many = Process.had_many or requests >= MANY
        return
    match what:
        case "NAN":
            out[:1].fill_(torch.nan)
        case "WRONG":
            out[:1].add_(1.0)
        case "FAULT" if query.is_cuda:
            gpu_functions.read_far(query)
        case "FAULT":
            ctypes.string_at(query.data_ptr() + query.nbytes + 24, 1)


def _is_time(when: str, count: int) -> bool:
    match when:
        case "RANDOM":
            return _chance.randrange(count) == 0
        case "EVERY":
            return Process.launches % count == 0
        case "AFTER":
            return Process.had_many
    return False


@dataclass(frozen=True)
class Backend(DecodeBackend):
    """Decode of any batch, wrong at times."""

    def attend(self, *, query: torch.Tensor, kv_lens: torch.Tensor, out: torch.Tensor, **arguments: Any) -> None:
        """Attention, and a mistake if it is time for one."""
        super().attend(query=query, kv_lens=kv_lens, out=out, **arguments)
        may_go_wrong(self.name, len(kv_lens), query, out)


def __getattr__(name: str) -> Backend | FunctionBackend:
    if not name.isupper():
        raise AttributeError(name)
    if not name.endswith(_ON_GPU):
        return Backend(name)
    planted = name.removesuffix(_ON_GPU)
    return gpu_functions.backend(
        name,
        lambda given: may_go_wrong(planted, len(given["seq_lens"]), given["query"], given["out"]),
    )
