"""Simple attention kernels of this project for every NVIDIA GPU, behind the functions of FlashInfer's trtllm-gen.

FlashInfer has those for Blackwell alone. These kernels are not under test: they let a planner run on any GPU, with real
graphs and next to real kernels, as `native` does on the CPU.
"""
