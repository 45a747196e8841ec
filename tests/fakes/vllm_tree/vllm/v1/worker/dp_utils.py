"""The agreement of ranks."""

import torch
import torch.distributed as dist


def coordinate_batch_across_dp(tokens: int, padded: int, mode: int, ranks: int) -> tuple[int, int]:
    """The tokens to which all ranks pad, the most of all, and their kind of graph, the least of all."""
    tensor = torch.zeros(4, ranks, dtype=torch.int32)
    tensor[:, 0] = torch.tensor([tokens, padded, 0, mode])
    dist.all_reduce(tensor, group=None)
    least = int(tensor[3].min())
    return (int(tensor[1].max()) if least else padded), least
