"""The build of kernels: the cache, bounded commands, pip, and the Triton interpreter."""
