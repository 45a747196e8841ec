"""Exact fp64 values of what a kernel reads."""

import torch


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a float tensor in fp64, contiguous and without any rounding; a contiguous fp64 tensor is itself.

    On the CPU, fp8 goes through a table of its 256 values, four times as fast as torch's own conversion.
    """
    if tensor.dtype is torch.float8_e4m3fn and tensor.device.type == "cpu":
        index = tensor.view(torch.uint8).to(torch.int32, memory_format=torch.contiguous_format)
        return _E4M3.index_select(0, index.view(-1)).view(tensor.shape)
    if tensor.dtype is torch.float64:
        return tensor.contiguous()
    return tensor.to(torch.float64, memory_format=torch.contiguous_format)


_E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float64)
