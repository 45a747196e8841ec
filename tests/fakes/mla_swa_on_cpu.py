"""Stands for the backend mla_swa: its calls are bound to the installed FlashInfer, and computed by the reference."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from bound_call import bind
from flashinfer.mla import get_mla_swa_workspace_size_bytes
from plain_attention import attend_paged

from attnfuzz.kernels.gpu.direct.mla_swa import DECODE, MLA_SWA, MlaSwaSession
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.reference.device import Device
from attnfuzz.reference.geometry import KvLayout

NAME = f"{Path(__file__)}:BACKEND"

CALLS: list[tuple[int, int, int | None]] = []
"""The requests, the queries per request and the tactic of each call in this process."""


def _decode(*, tactic: int | None = None, **arguments: Any) -> torch.Tensor:
    taken = bind("flashinfer.mla", DECODE.name, arguments)
    query, cache = taken["query"], taken["kv_cache"]
    batch, stride, heads, _ = query.shape
    CALLS.append((batch, stride, tactic))
    assert taken["workspace_buffer"].numel() >= get_mla_swa_workspace_size_bytes(batch, stride, heads)
    assert query.is_contiguous()
    assert cache.is_contiguous()
    assert cache.shape[1:] == (64, 1088)
    assert taken["block_tables"].shape[1] >= 1
    answer = attend_paged(
        query.flatten(0, 1),
        cache.unsqueeze(1),
        cache[..., :1024].unsqueeze(1),
        taken["block_tables"],
        layout=KvLayout.HND,
        q_lens=(stride,) * batch,
        kv_lens=tuple(taken["seq_lens"].tolist()),
        bmm1_scale=taken["sm_scale"],
        window_left=taken["window_left"],
    )
    result = answer.out.view(batch, stride, heads, -1).to(query.dtype)
    if "out" in taken:
        taken["out"].copy_(result)
    return result


class _OnCpu(GpuBackend):
    """A backend that needs no GPU."""

    def missing(self) -> str | None:
        """Return None."""
        return None

    def prepare(self, progress: Any) -> None:
        """Compile nothing."""


BACKEND = _OnCpu(
    **{name: getattr(MLA_SWA, name) for name in MLA_SWA.__dataclass_fields__}
    | {
        "capability": msgspec.structs.replace(MLA_SWA.capability, device=Device.CPU),
        "session": partial(MlaSwaSession, op=replace(DECODE, function=_decode)),
        "kernels": (replace(DECODE, function=_decode),),
        "modules_of": lambda _: (),
    }
)
