"""The group of ranks that share keys: its collectives, as vLLM's GroupCoordinator has them.

A file and line below vllm/ is that of vLLM 0.33.0.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from attnfuzz.kernels.releases.answers import ServerMock
from attnfuzz.kernels.releases.recording import Recording, outside
from attnfuzz.kernels.vllm.dcp.ranks import RankThreads


class RankGroup(ServerMock):
    """A rank's group: its collectives, and those of torch.distributed on its device group.

    Results are dense, as in distributed/device_communicators/base_device_communicator.py. A capture records a
    collective, which exchanges nothing before a replay.
    """

    def __init__(self, ranks: RankThreads) -> None:
        super().__init__("dcp_group", world_size=ranks.number, device_group=None, cpu_group=None)
        self._ranks = ranks

    @property
    def rank_in_group(self) -> int:
        """The calling rank."""
        return self._ranks.rank

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Return the tensors of all ranks, concatenated on an axis."""
        if not tensor.is_contiguous():
            raise RuntimeError("all_gather of a tensor that is not contiguous, which NCCL refuses")
        shape = list(tensor.shape)
        shape[dim] *= self.world_size
        gathered = tensor.new_empty(shape)
        self._collective("all_gather", tensor, lambda parts: gathered.copy_(torch.cat(parts, dim)))
        return gathered

    def reduce_scatter(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Return the rank's part, on an axis, of the sum of all ranks' tensors."""
        assert tensor.shape[dim] % self.world_size == 0
        shape, rank = list(tensor.shape), self.rank_in_group
        shape[dim] //= self.world_size
        reduced = tensor.new_empty(shape)

        def add(parts: list[torch.Tensor]) -> None:
            mine = [part.narrow(dim, rank * shape[dim], shape[dim]) for part in parts]
            reduced.copy_(torch.stack(mine).float().sum(0))

        self._collective("reduce_scatter", tensor, add)
        return reduced

    def all_gather_into_tensor(self, output: torch.Tensor, given: torch.Tensor, group: object = None) -> None:
        """Write the tensors `given` by all ranks to `output`, concatenated (torch.distributed)."""
        del group
        self._collective("all_gather_into_tensor", given, lambda parts: output.copy_(torch.cat(parts)))

    def all_to_all_single(
        self, output: torch.Tensor, given: torch.Tensor, group: object = None, *, async_op: bool = False
    ) -> Any:
        """Write this rank's parts of the tensors `given` by all ranks to `output` (torch.distributed)."""
        del group
        rank, length = self.rank_in_group, given.shape[0] // self.world_size

        def put(parts: list[torch.Tensor]) -> None:
            output.copy_(torch.cat([part.narrow(0, rank * length, length) for part in parts]))

        self._collective("all_to_all_single", given, put)
        return SimpleNamespace(wait=lambda: None) if async_op else None

    def _collective(self, name: str, tensor: torch.Tensor, write: Callable[[list[torch.Tensor]], object]) -> None:
        def work() -> None:
            with outside():
                parts = self._ranks.exchange(name, tensor)
                write(parts)

        recording = Recording.current()
        if recording is None:
            work()
        else:
            recording.keep(work)
