"""Attention kernels for the CPU, in C++, with the calling conventions of TRT-LLM's CUDA kernels.

They read raw pointers and trust their caller where the CUDA kernels do, so a planner's mistake is a real wild access
here too. TRAPS.md lists these conventions with their sources.
"""
