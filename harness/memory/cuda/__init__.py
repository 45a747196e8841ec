"""Guarded memory on a GPU: CUDA's virtual memory, mapped only for tensors."""
