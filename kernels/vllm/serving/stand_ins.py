"""Replacements in an engine's modules: of a sampler's output, multimodal features, and compiled functions."""

from collections.abc import Sequence
from types import FunctionType
from typing import Any, Final

import torch

REJECTED: Final = -1
"""The placeholder of a rejected draft in a rejection sampler's output (0.33.0: v1/sample/rejection_sampler.py)."""


def replace_sampling(runner: Any) -> None:
    """Replace the function of the model runner's module that parses a rejection sampler's output."""
    # 0.33.0: v1/sample/rejection_sampler.py, parse_output
    runner.RejectionSampler.parse_output = staticmethod(_accepted)


def replace_compiled(module: Any) -> None:
    """Run the compiled functions of a module eagerly: torch.compile takes a minute, and needs a C++ compiler."""
    for name, own in list(vars(module).items()):
        if isinstance(own, FunctionType) and hasattr(own, "_torchdynamo_orig_callable"):
            setattr(module, name, own._torchdynamo_orig_callable)  # noqa: SLF001 - it has no other name


def replace_features(output: Any) -> None:
    """Replace the function that strips multimodal features from a scheduler's output: requests have none."""
    if hasattr(output, "strip_covered_mm_data"):
        # 0.33.0: v1/core/sched/output.py:69
        output.strip_covered_mm_data = lambda features, *_, **__: features


def _accepted(
    sampled: torch.Tensor, vocabulary: int, discarded: Sequence[int] = (), logprobs_tensors: object = None
) -> tuple[list[list[int]], None]:
    """Return the tokens of each request; none for those in `discarded`."""
    del vocabulary, logprobs_tensors
    left = set(map(int, discarded))
    rows = enumerate(sampled.tolist())
    return [[] if row in left else [each for each in tokens if each != REJECTED] for row, tokens in rows], None
