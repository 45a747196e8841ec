"""Latent attention in a release of vLLM: its own layer, with kernels and weights of this project."""
