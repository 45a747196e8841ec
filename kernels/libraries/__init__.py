"""The wing of libraries: attention kernels and cache writers of installed libraries, run on the CPU.

One module for each library, or two if it also writes the KV cache. A library is behind an extra of this package
(docs/guides/libraries.md). `installed.py` has the classes of their backends, `catalogue.py` lists them.

Door (`attnfuzz.shipped`): the collections `torch` and `libraries` (`--backend libraries` stands for the second), and
the source of torch's attention for scripts.

May touch: the core alone. A module here is read by every process, and so imports its library inside functions, which
run in workers alone.

Used by FlashInfer's wing (torch on a GPU), and by engines, for kernels in Triton's interpreter and vLLM's CPU kernels.

Tests: `make test-libraries`; backends whose library is missing are skipped.
"""
