"""The workspace of a recorded call: as much as the kernel of the case uses."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from attnfuzz.harness.dumps.contents import BufferShelf
from attnfuzz.harness.dumps.recorded import ForeignTensor
from attnfuzz.kernels.backend import Op
from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.kernels.native import build, ops
from attnfuzz.reference.calls import View

_LOOKED_AT = 8 << 20
"""Bytes at the start of a workspace, where FlashInfer's XQA keeps its semaphores (its docstring of `xqa`)."""


def used_bytes(op: Op, arguments: Mapping[str, Any]) -> int | None:
    """How much workspace a call uses that its entry point understands, None if its kernel is not one of ours.

    Raises NoCompiler, BuildFailed: the kernels are asked.
    """
    if op.function.__module__ != ops.__name__:
        return None
    build.load()
    need = ENTRY_POINTS[op.name].workspace(arguments)
    return None if need is None else need.total


class CaseWorkspaces:
    """The workspaces of all calls of a case. `used` is the most that one of them uses, None if that is not known.

    What is not used is cut off, and the rest begins as zeros, since each kernel lays its workspace out in a way of its
    own. One that is no larger than that is kept as it was.
    """

    def __init__(self, shelf: BufferShelf, used: int | None) -> None:
        self._shelf, self._used = shelf, used
        self._cut: dict[int, View] = {}

    def place(self, name: str, source: ForeignTensor) -> tuple[View, list[str]]:
        """A workspace of uint8, and what was changed, in words. Raises DumpError.

        Workspaces of equal size that are cut are taken to be one: servers have one for all their calls.
        """
        nbytes = math.prod(source.shape) * source.dtype.itemsize
        if self._used is None or nbytes <= self._used:
            return self._shelf.keep(name, _as_bytes(source.read())), []
        if nbytes in self._cut:
            return self._cut[nbytes], [f"{name} has the size of that of an earlier call, and is taken to be the same."]
        start = source.rows(torch.arange(min(_LOOKED_AT // source.dtype.itemsize, source.shape[0])))
        began = "with" if not _as_bytes(start).any() else "not only with"
        now = f"it is {self._used:,} bytes of zeros now, as many as the native kernel uses"
        if not self._used:
            now = "it is empty now, since the native kernel uses none"
        note = f"{name} had {nbytes:,} bytes, and began {began} zeros; {now}."
        self._cut[nbytes] = self._shelf.keep(name, torch.zeros(self._used, dtype=torch.uint8))
        return self._cut[nbytes], [note]


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)
