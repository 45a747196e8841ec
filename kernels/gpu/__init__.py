"""The wing of FlashInfer, and of torch's attention on GPUs: backends whose kernels run on NVIDIA GPUs.

Packages: this one (`hopper/`, `blackwell.py`, `wrappers/`, `direct/`, and `any_gpu/` with kernels of our own for
functions that FlashInfer has on Blackwell alone); `kernels/trtllm/`, which plans and routes as servers do, on the CPU
as well; `kernels/entry_points/`, the meaning of FlashInfer's arguments; `harness/dumps/`, which reads the calls that
FlashInfer dumps, and the runs that its wrappers plan; and the commands `build` and `import` in
`harness/cli/flashinfer/`.

Door (`attnfuzz.shipped`): the collections `gpu` and `trtllm`, the functions and planned runs, the toolchain
(`toolchain.py`: modules are compiled before jobs start, and loaded by workers), the sources that scripts for FlashInfer
contain, and the commands.

May touch: the core, and the wing of libraries for torch's attention. FlashInfer is imported inside functions, in
workers and in the process that compiles, because its import creates a CUDA context. GPUs themselves are the core's
(`kernels/cuda/`): discovery, nvcc and the kernels of guarded memory.

Used by engines, whose releases run on these kernels, and by self-tests, which plant defects in its planners.

Tests: `make test-flashinfer`, without a GPU; `make test-gpu`, with one.
"""
