"""vLLM's backend for CPUs: its own model runner, builder and implementation, on its own compiled kernels."""
