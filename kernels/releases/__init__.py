"""The wing of engines: releases and source trees of LLM servers, whose own attention code is run as backends.

Packages: `kernels/sglang/` and `kernels/vllm/`, which know nothing of each other; this one, which they share: wheels on
disk, their import, and the kernels below them, bound to the signatures that a release pins; `harness/releases/`, which
finds the releases in which a failure began and ended; and its commands `bisect` and `sweep` in `harness/cli/releases/`.

Door (`attnfuzz.shipped`, or an entry point `attnfuzz.engines` of another package): an `Engine`
(`kernels/interface/engine.py`). It owns names such as `vllm==0.32.0:flashinfer`, resolves them, and names the code that
is imported before workers fork (`preload.py` of either engine). And the commands.

May touch: the core, FlashInfer's wing and that of libraries. A release is imported by its loader alone, in processes
that run nothing else. `harness/releases/` touches engines by their door, and reads the reported bugs of self-tests.

Tests: `make test-engines`, on source trees in tests/fakes; `make test-sglang` and `make test-vllm`, on releases.
"""
