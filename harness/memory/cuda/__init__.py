"""Guarded memory on a GPU: CUDA's virtual memory, of which only what tensors need is mapped."""
