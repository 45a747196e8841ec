"""Right attention that is wrong now and then: `intermittent_backend.py:RANDOM_17_NAN`.

The first part of a name says when a launch is wrong: RANDOM_N at random, once in N; EVERY_N at every N-th launch of the
process; AFTER_1 in each launch after one of a batch of at least `MANY` requests. The second says in what way: NAN is
a row of NaN, WRONG a row that is off, FAULT an access that ends the process.
"""

import ctypes
import random
from dataclasses import dataclass
from typing import Any

import torch
from defective_backend import Backend as DecodeBackend

MANY = 6

_chance = random.SystemRandom()
"""Workers are forked: any other generator would give each the same numbers."""


class Process:
    """What this process has launched."""

    launches = 0
    had_many = False


@dataclass(frozen=True)
class Backend(DecodeBackend):
    """Decode of any batch, wrong at times."""

    def attend(self, *, query: torch.Tensor, kv_lens: torch.Tensor, out: torch.Tensor, **arguments: Any) -> None:
        """Attention, and a mistake if it is time for one."""
        super().attend(query=query, kv_lens=kv_lens, out=out, **arguments)
        Process.launches += 1
        if not self._is_time():
            Process.had_many = Process.had_many or len(kv_lens) >= MANY
            return
        match self.name.rpartition("_")[2]:
            case "NAN":
                out[:1].fill_(torch.nan)
            case "WRONG":
                out[:1].add_(1.0)
            case "FAULT":
                ctypes.string_at(query.data_ptr() + query.nbytes + 24, 1)

    def _is_time(self) -> bool:
        when, count, _ = self.name.split("_")
        match when:
            case "RANDOM":
                return _chance.randrange(int(count)) == 0
            case "EVERY":
                return Process.launches % int(count) == 0
            case "AFTER":
                return Process.had_many
        return False


def __getattr__(name: str) -> Backend:
    if not name.isupper():
        raise AttributeError(name)
    return Backend(name)
