"""NVIDIA GPUs: which are visible, the compiler, guarded memory's own kernels, and a kernel with a planted access."""
