"""Attention kernels of this project for every NVIDIA GPU: simple ones, behind the functions of FlashInfer's trtllm-gen.

FlashInfer has those for Blackwell alone. These are no kernels under test: they let a planner run on any GPU, with real
graphs and next to real kernels, as `native` does on the CPU.
"""
