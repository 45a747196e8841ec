"""Defects in merging partial results: of splits inside a kernel, and of chunks by the merge kernel."""

from attnfuzz.kernels.defects.defect import BugClass, Layer
from attnfuzz.kernels.defects.native import native_defect
from attnfuzz.kernels.trtllm.backends import MLA
from attnfuzz.reference.mistake import Mistake

MERGE_DEFECTS = (
    native_defect(
        "last_split_dropped",
        Layer.MERGE,
        BugClass.WORKSPACE,
        "The last split is never merged.",
        "Camelid PR #714",
        explained_by=(Mistake.KEYS_MISSING, Mistake.LSE_OF_A_PART),
    ),
    native_defect(
        "split_remainder_dropped",
        Layer.MERGE,
        BugClass.WORKSPACE,
        "A split gets floor(keys / splits) keys: the remainder, 7 keys at most, is in none.",
        "flash-linear-attention issue #1029",
        explained_by=(Mistake.KEYS_MISSING, Mistake.LSE_OF_A_PART),
    ),
    native_defect(
        "empty_parts_merged",
        Layer.MERGE,
        BugClass.LSE_AND_MERGE,
        "Two parts without keys are merged as any others: -inf - -inf is NaN.",
        "FlashInfer issue #4051",
    ),
    native_defect(
        "lse_of_the_first_split",
        Layer.MERGE,
        BugClass.LSE_AND_MERGE,
        "The LSE is that of the first split alone; the output is right.",
        "vllm-project/flash-attention PR #34",
        explained_by=(Mistake.LSE_OF_A_PART,),
    ),
    native_defect(
        "partials_in_bf16",
        Layer.MERGE,
        BugClass.PRECISION,
        "Below fp32 queries, partial results of splits are kept in bf16.",
        "FlashInfer PR #5166",
    ),
    native_defect(
        "merge_in_base_e",
        Layer.MERGE,
        BugClass.LSE_AND_MERGE,
        "Chunks are weighted by exp of LSEs in base 2.",
        "FlashInfer issue #2113",
        backend=MLA,
        explained_by=(Mistake.MERGE_BASE,),
    ),
    native_defect(
        "merge_swaps_shares",
        Layer.MERGE,
        BugClass.LSE_AND_MERGE,
        "Each of two chunks gets the other's weight.",
        "FlashInfer issue #499",
        backend=MLA,
        explained_by=(Mistake.MERGE_WEIGHTS,),
    ),
    native_defect(
        "merge_keeps_lse",
        Layer.MERGE,
        BugClass.LSE_AND_MERGE,
        "A merge updates the output and not the LSE, so that later chunks weigh too much.",
        "SGLang PR #22688",
        backend=MLA,
        explained_by=(Mistake.LSE_OF_A_PART, Mistake.MERGE_WEIGHTS),
    ),
    native_defect(
        "merge_clamps_weights",
        Layer.MERGE,
        BugClass.LSE_AND_MERGE,
        "A chunk weighs at least 2^-10 of the other, also where it has no keys.",
        "vLLM PR #39148",
        backend=MLA,
        explained_by=(Mistake.MERGE_WEIGHTS,),
    ),
)
"""Of the native kernels."""
