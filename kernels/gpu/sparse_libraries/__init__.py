"""Kernels of sparse attention that engines install from wheels: FlashMLA, DeepGEMM and SGLang's top-k, on Hopper."""
