"""Defects of masks: which keys a query sees."""

from attnfuzz.kernels.defects.defect import BugClass, Layer
from attnfuzz.kernels.defects.native import native_defect
from attnfuzz.reference.mistake import Mistake

MASK_DEFECTS = (
    native_defect(
        "window_one_short",
        Layer.MASK,
        BugClass.WINDOW,
        "A window lacks its oldest key: window_left is taken for the number of keys, a query's own included.",
        "tokenspeed PR #578",
        explained_by=(Mistake.WINDOW,),
    ),
    native_defect(
        "window_one_long",
        Layer.MASK,
        BugClass.WINDOW,
        "A window has one key too many: its lower limit is compared with <= instead of <.",
        "transformers issue #39408",
        explained_by=(Mistake.WINDOW,),
    ),
    native_defect(
        "window_of_the_first_query",
        Layer.MASK,
        BugClass.WINDOW,
        "All queries of a request have the window of its first one.",
        "FlashInfer issue #3864",
        explained_by=(Mistake.WINDOW,),
    ),
    native_defect(
        "window_from_a_tile_edge",
        Layer.MASK,
        BugClass.WINDOW,
        "A window begins at a multiple of 16 keys: whole tiles before it are skipped, the first tile is not masked.",
        "FlashInfer PR #4825",
        explained_by=(Mistake.WINDOW,),
    ),
    native_defect(
        "causal_limit_one_late",
        Layer.MASK,
        BugClass.MASK_ROWS,
        "A query sees the key after its own, where there is one.",
        "vllm-xpu-kernels PR #181",
        explained_by=(Mistake.CAUSAL_LIMIT,),
    ),
    native_defect(
        "causal_mask_from_the_first_key",
        Layer.MASK,
        BugClass.MASK_ROWS,
        "The causal mask aligns the first query to the first key, and not the last to the last.",
        "flash-attention issue #282",
        explained_by=(Mistake.CAUSAL_ALIGNMENT,),
    ),
    native_defect(
        "mask_of_the_first_query",
        Layer.MASK,
        BugClass.MASK_ROWS,
        "All queries of a request see what its first one sees.",
        "SGLang PR #24856",
        explained_by=(Mistake.MASK_OF_ANOTHER_ROW,),
    ),
    native_defect(
        "short_kv_sees_one_key",
        Layer.MASK,
        BugClass.SHORT_KV,
        "A query before the first key, in a request with fewer keys than queries, sees the first key.",
        "FlashInfer issue #4452",
    ),
)
"""Of the native kernels."""
