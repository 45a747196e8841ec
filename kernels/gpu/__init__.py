"""Backends whose kernels run on NVIDIA GPUs."""
