"""NVIDIA GPUs, whatever runs on them: which are visible, the compiler, and guarded memory's own kernels."""
