"""Defects of threads that share a workspace."""

from attnfuzz.kernels.defects.defect import BugClass, Layer
from attnfuzz.kernels.defects.native import native_defect
from attnfuzz.reference.mistake import Mistake

CONCURRENCY_DEFECTS = (
    native_defect(
        "merge_before_the_last_part",
        Layer.CONCURRENCY,
        BugClass.WORKSPACE,
        "Splits are merged when all but one have arrived.",
        "FlashInfer issue #1046",
        explained_by=(Mistake.KEYS_MISSING, Mistake.LSE_OF_A_PART),
    ),
    native_defect(
        "semaphore_left_set",
        Layer.CONCURRENCY,
        BugClass.WORKSPACE,
        "A call leaves its counters as they are, so that the next one in this workspace never merges.",
        "FlashInfer PR #3474",
    ),
    native_defect(
        "empty_split_not_written",
        Layer.CONCURRENCY,
        BugClass.WORKSPACE,
        "A split without keys writes no partial result: the scratch is taken to be zero.",
        "TensorRT-LLM PR #18755",
    ),
    native_defect(
        "partials_overlap",
        Layer.CONCURRENCY,
        BugClass.WORKSPACE,
        "The partial results of two splits overlap: their maxima and sums are not counted in their size.",
        "vLLM PR #45844",
    ),
    native_defect(
        "merge_in_order_of_arrival",
        Layer.CONCURRENCY,
        BugClass.WORKSPACE,
        "The split that arrives last is merged first, so that the same call gives other bits.",
        "vLLM issue #53257",
    ),
)
"""Of the native kernels."""
