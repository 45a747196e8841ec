"""Defects of the C++ kernels: in addressing, masking, arithmetic, merging, repairs, and the shared workspace.

kernels/native/defects.h has each of them by the same name.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from attnfuzz.kernels.defects.defect import BugClass, Defect, Layer
from attnfuzz.kernels.defects.native import coarse_kernels, native_kernels
from attnfuzz.kernels.trtllm.backends import MHA, MLA, TrtllmBackend
from attnfuzz.reference.mistake import Mistake

_Table = Mapping[tuple[Layer, BugClass], Mapping[str, tuple[str, str, *tuple[Mistake, ...]]]]
"""By name: the title and the source of a defect, and the mistakes that may explain it."""

_ON_PAGES: Final[_Table] = {
    (Layer.KERNEL, BugClass.WRONG_INDEX_SPACE): {
        "query_heads_interleaved": (
            "Query head h uses KV head h % kv_heads instead of h / group.",
            "HipKittens PR #22",
            Mistake.OTHER_KV_HEAD,
        ),
    },
    (Layer.KERNEL, BugClass.STRIDES): {
        "query_strides_ignored": (
            "Queries are read as if they were contiguous.",
            "flash-attention issue #2886",
            Mistake.QUERY_STRIDE,
        ),
        "table_gap_ignored": (
            "Rows of the page table are assumed to follow each other without gaps.",
            "vLLM PR #44577",
            Mistake.TABLE_STRIDE,
        ),
    },
    (Layer.KERNEL, BugClass.INT32_OFFSETS): {
        "page_offset_wraps": (
            "Offsets into the pool wrap at 2^18 elements: a stand-in for 2^32, which would take gigabytes.",
            "FlashInfer PR #3136",
            Mistake.PAGE_IDS,
            Mistake.KEYS_REPLACED,
        ),
    },
    (Layer.KERNEL, BugClass.PAGE_LAYOUT): {
        "tile_taken_from_one_page": (
            "One page is looked up per tile of 32 keys: smaller pages are assumed to be consecutive.",
            "TileOPs PR #1783",
            Mistake.PAGES_IN_A_ROW,
        ),
    },
    (Layer.KERNEL, BugClass.TABLE_WIDTH_OR_TAIL): {
        "last_page_read_whole": (
            "Lengths are rounded up to whole pages, so that slots past the end are keys.",
            "FlashInfer issue #941",
            Mistake.LENGTH,
        ),
    },
    (Layer.KERNEL, BugClass.STALE_TAILS): {
        "masked_values_times_zero": (
            "Values past the end of a page's keys are multiplied by zero instead of left out: NaN times 0 is NaN.",
            "flash-attention issue #2374",
        ),
    },
    (Layer.KERNEL, BugClass.ALIGNMENT): {
        "fp8_loads_assume_alignment": (
            "FP8 rows are loaded 16 bytes at a time, which faults if the head dim is no multiple of 16.",
            "vLLM PR #45466",
        ),
        "last_vector_stored_whole": (
            "Outputs are stored 16 elements at a time: the last vector of a row overlaps its neighbour.",
            "pytorch PR #131277",
        ),
        "dot_tail_left_out": (
            "The logits lack the elements past the last multiple of 16.",
            "FlashInfer PR #5085",
            Mistake.LOGIT_SCALE,
        ),
        "dot_tail_twice": (
            "The logits count the last element twice if the head dim is no multiple of 16.",
            "mlc-llm PR #1889",
        ),
    },
    (Layer.KERNEL, BugClass.SHORT_KV): {
        "last_odd_key_skipped": (
            "With an odd number of more than 64 keys, the last one is skipped: they are loaded in pairs.",
            "SGLang PR #21987",
            Mistake.KEYS_MISSING,
        ),
        "empty_rows_divided_by_zero": ("A row without keys is 0 / 0 = NaN.", "SGLang PR #1779"),
    },
    (Layer.KERNEL, BugClass.LSE_AND_MERGE): {
        "sum_not_rescaled": (
            "When the maximum grows, the weighted values are rescaled, but the sum of the weights is not.",
            "flash-attention issue #2082",
        ),
        "small_growth_not_rescaled": (
            "When the maximum grows by less than 1/16, nothing is rescaled, although the maximum moves.",
            "flash-attention PR #2174",
        ),
        "natural_exponential": ("Tiles below the running maximum use exp on logits in base 2.", "tokenspeed PR #571"),
    },
    (Layer.KERNEL, BugClass.PRECISION): {
        "denominator_plus_epsilon": (
            "1e-6 is added to the sum of the weights before the division: at most 1e-6 of the output.",
            "vLLM issue #2481",
            Mistake.OUTPUT_SCALE,
        ),
        "probabilities_in_bf16": (
            "Below fp32 queries, weights are rounded to bf16 before they multiply the values, though fp32 is declared.",
            "flash-attention issue #703",
        ),
        "values_accumulated_in_bf16": ("The weighted values are summed in bf16.", "FlashInfer PR #799"),
        "small_weights_flushed": (
            "Weights below 2^-14 of the largest are zero, as in a softmax in fp16.",
            "flash-attention issue #613",
            Mistake.KEYS_MISSING,
        ),
        "e4m3_subnormals_as_normal": (
            "Subnormal FP8 numbers are decoded as if they had a leading one.",
            "tilelang issue #2702",
        ),
    },
    (Layer.KERNEL, BugClass.SCALES): {
        "logit_scale_in_bf16": ("The softmax scale is rounded to bf16.", "tt-metal PR #53217", Mistake.LOGIT_SCALE),
        "log2_e_of_four_digits": (
            "log2(e) is 1.4427, a relative error of 3e-6.",
            "flash-linear-attention PR #361",
            Mistake.LOGIT_SCALE,
        ),
    },
    (Layer.MASK, BugClass.WINDOW): {
        "window_one_short": (
            "A window lacks its oldest key: window_left is used as the number of keys, including a query's own.",
            "tokenspeed PR #578",
            Mistake.WINDOW,
        ),
        "window_one_long": (
            "A window has one key too many: its lower limit is compared with <= instead of <.",
            "transformers issue #39408",
            Mistake.WINDOW,
        ),
        "window_of_the_first_query": (
            "All queries of a request have the window of its first one.",
            "FlashInfer issue #3864",
            Mistake.WINDOW,
        ),
        "window_from_a_tile_edge": (
            "A window begins at a multiple of 16 keys: tiles before it are skipped, the first one is not masked.",
            "FlashInfer PR #4825",
            Mistake.WINDOW,
        ),
    },
    (Layer.MASK, BugClass.MASK_ROWS): {
        "causal_limit_one_late": (
            "A query sees the key after its own, where there is one.",
            "vllm-xpu-kernels PR #181",
            Mistake.CAUSAL_LIMIT,
        ),
        "causal_mask_from_the_first_key": (
            "The causal mask aligns the first query to the first key, instead of the last to the last.",
            "flash-attention issue #282",
            Mistake.CAUSAL_ALIGNMENT,
        ),
        "mask_of_the_first_query": (
            "All queries of a request see the keys of its first one.",
            "SGLang PR #24856",
            Mistake.MASK_OF_ANOTHER_ROW,
        ),
    },
    (Layer.MASK, BugClass.SHORT_KV): {
        "short_kv_sees_one_key": (
            "A query before the first key, in a request with fewer keys than queries, sees the first key.",
            "FlashInfer issue #4452",
        ),
    },
    (Layer.SINK, BugClass.SINKS): {
        "sink_missing_from_output": (
            "The sink counts in the LSE, but not in the denominator of the output.",
            "imp issue #1345",
            Mistake.SINK,
        ),
        "sink_missing_from_lse": (
            "The sink counts in the denominator of the output, but not in the LSE.",
            "FlashInfer PR #5119",
            Mistake.SINK,
        ),
        "sink_in_every_split": (
            "Every split of the keys adds the sink, so that it counts several times.",
            "rocm-libraries issue #12227",
            Mistake.SINK,
        ),
        "sink_scaled_as_a_logit": (
            "The softmax scale multiplies the sink.",
            "rocm-libraries issue #12227",
            Mistake.SINK_SCALED,
        ),
        "sink_of_the_first_head_in_its_group": (
            "All query heads of a group have the sink of the group's first head.",
            "vllm-xpu-kernels PR #556",
            Mistake.SINK_OF_ANOTHER_HEAD,
        ),
    },
    (Layer.MERGE, BugClass.WORKSPACE): {
        "last_split_dropped": (
            "The last split is never merged.",
            "Camelid PR #714",
            Mistake.KEYS_MISSING,
            Mistake.LSE_OF_A_PART,
        ),
        "split_remainder_dropped": (
            "A split gets floor(keys / splits) keys: the remainder, up to 7 keys, is in none.",
            "flash-linear-attention issue #1029",
            Mistake.KEYS_MISSING,
            Mistake.LSE_OF_A_PART,
        ),
    },
    (Layer.MERGE, BugClass.LSE_AND_MERGE): {
        "empty_parts_merged": (
            "Two parts without keys are merged like any others: -inf - -inf is NaN.",
            "FlashInfer issue #4051",
        ),
        "lse_of_the_first_split": (
            "The LSE is that of the first split alone; the output is right.",
            "vllm-project/flash-attention PR #34",
            Mistake.LSE_OF_A_PART,
        ),
    },
    (Layer.MERGE, BugClass.PRECISION): {
        "partials_in_bf16": ("Below fp32 queries, partial results of splits are kept in bf16.", "FlashInfer PR #5166"),
    },
    (Layer.CONCURRENCY, BugClass.WORKSPACE): {
        "merge_before_the_last_part": (
            "Splits are merged when all but one have arrived.",
            "FlashInfer issue #1046",
            Mistake.KEYS_MISSING,
            Mistake.LSE_OF_A_PART,
        ),
        "semaphore_left_set": (
            "A call does not reset its counters, so that the next one in this workspace never merges.",
            "FlashInfer PR #3474",
        ),
        "empty_split_not_written": (
            "A split without keys writes no partial result: the scratch is assumed to be zero.",
            "TensorRT-LLM PR #18755",
        ),
        "partials_overlap": (
            "The partial results of two splits overlap: their size does not include their maxima and sums.",
            "vLLM PR #45844",
        ),
        "merge_in_order_of_arrival": (
            "The split that arrives last is merged first, so that the same call gives other bits.",
            "vLLM issue #53257",
        ),
    },
}

_ON_LATENTS: Final[_Table] = {
    (Layer.KERNEL, BugClass.STRIDES): {
        "values_at_key_strides": (
            "Values are read at the strides of the keys.",
            "FlashInfer PR #5071",
            Mistake.CACHE_STRIDE,
        ),
    },
    (Layer.MERGE, BugClass.LSE_AND_MERGE): {
        "merge_in_base_e": (
            "Chunks are weighted by exp of LSEs in base 2.",
            "FlashInfer issue #2113",
            Mistake.MERGE_BASE,
        ),
        "merge_swaps_shares": (
            "Each of two chunks gets the other's weight.",
            "FlashInfer issue #499",
            Mistake.MERGE_WEIGHTS,
        ),
        "merge_keeps_lse": (
            "A merge updates the output but not the LSE, so that later chunks weigh too much.",
            "SGLang PR #22688",
            Mistake.LSE_OF_A_PART,
            Mistake.MERGE_WEIGHTS,
        ),
        "merge_clamps_weights": (
            "A chunk weighs at least 2^-10 of the other, even without keys.",
            "vLLM PR #39148",
            Mistake.MERGE_WEIGHTS,
        ),
    },
    (Layer.FIXUP, BugClass.SHORT_KV): {
        "fixup_half_a_grid": (
            "The grid covers half of the longest request: later rows are not repaired.",
            "SGLang PR #22688",
        ),
        "fixup_rows_at_a_stride": (
            "Rows are assumed to lie at a stride of the longest request, instead of at the cumulative lengths.",
            "SGLang PR #22688",
        ),
    },
    (Layer.FIXUP, BugClass.LSE_AND_MERGE): {
        "fixup_leaves_lse": ("The output is repaired, but the LSE is not.", "SGLang PR #22688"),
        "fixup_leaves_out": (
            "The LSE is repaired, but the output is not: a merge multiplies its old contents by zero.",
            "SGLang PR #22688",
        ),
    },
}

_COARSE: Final[_Table] = {
    (Layer.KERNEL, BugClass.PRECISION): {
        "output_rounded_toward_zero": (
            "bf16 outputs are truncated instead of rounded to nearest.",
            "aiter issue #5151",
            Mistake.OUTPUT_SCALE,
        ),
        "probabilities_truncated": (
            "Weights are truncated to bf16 for the second product instead of rounded to nearest.",
            "aiter issue #5151",
            Mistake.OUTPUT_SCALE,
        ),
        "value_at_a_tile_edge_skipped": (
            "The last value of every 256 is not added, though its weight is counted.",
            "Camelid PR #714",
            Mistake.VALUES_MISSING,
        ),
    },
    (Layer.KERNEL, BugClass.SCALES): {
        "output_scale_in_bf16": (
            "The scale of V is rounded to bf16: a relative error of 2e-3 for 1.7.",
            "tt-metal PR #53217",
            Mistake.OUTPUT_SCALE,
        ),
    },
}


def _defects(
    table: _Table, backend: TrtllmBackend, kernels_with: Callable[[TrtllmBackend, str], TrtllmBackend]
) -> Iterator[Defect]:
    for (layer, bug_class), defects in table.items():
        for name, (title, source, *explained_by) in defects.items():
            plant = _plant(kernels_with, name)
            yield Defect(name, layer, bug_class, title, source, backend.name, plant, tuple(explained_by))


def _plant(
    kernels_with: Callable[[TrtllmBackend, str], TrtllmBackend], name: str
) -> Callable[[TrtllmBackend], TrtllmBackend]:
    return lambda correct: kernels_with(correct, name)


DEFECTS: Final = (
    *_defects(_ON_PAGES, MHA, native_kernels),
    *_defects(_ON_LATENTS, MLA, native_kernels),
    *_defects(_COARSE, MHA, coarse_kernels),
)
