"""vLLM's planners of sparse attention: a release's own metadata builders and layers, on native kernels."""
