"""Where a backend runs."""

from enum import StrEnum


class Device(StrEnum):
    """The kind of device that a backend's kernels run on, by the name that torch gives it."""

    CPU = "cpu"
    CUDA = "cuda"
