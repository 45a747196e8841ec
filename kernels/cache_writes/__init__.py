"""Writers of the KV cache: kernels that store the keys and values of new tokens. Imports `kernels` and `reference`."""
