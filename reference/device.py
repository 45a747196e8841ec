"""The kinds of devices that backends run on."""

from enum import StrEnum


class Device(StrEnum):
    """The kind of device that a backend's kernels run on, by torch's name."""

    CPU = "cpu"
    CUDA = "cuda"
