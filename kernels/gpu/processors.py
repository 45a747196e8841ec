"""How many streaming multiprocessors a GPU has, by which kernels split their work and size their workspaces."""

import torch

_HOPPER = 132
"""Those of an H100 or H200 (SXM)."""


def processors(device: torch.device) -> int:
    """The multiprocessors of `device`; an H100's where it is the CPU, on which sessions can be planned and not run."""
    if device.type == "cpu":
        return _HOPPER
    return torch.cuda.get_device_properties(device).multi_processor_count
