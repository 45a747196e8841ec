"""Defects of the kernel that repairs the rows of requests without keys."""

from attnfuzz.kernels.defects.defect import BugClass, Layer
from attnfuzz.kernels.defects.native import native_defect
from attnfuzz.kernels.trtllm.backends import MLA

FIXUP_DEFECTS = (
    native_defect(
        "fixup_half_a_grid",
        Layer.FIXUP,
        BugClass.SHORT_KV,
        "The grid covers half of the longest request: later rows are not repaired.",
        "SGLang PR #22688",
        backend=MLA,
    ),
    native_defect(
        "fixup_rows_at_a_stride",
        Layer.FIXUP,
        BugClass.SHORT_KV,
        "Rows are looked for at a stride of the longest request, and not at the cumulative lengths.",
        "SGLang PR #22688",
        backend=MLA,
    ),
    native_defect(
        "fixup_leaves_lse",
        Layer.FIXUP,
        BugClass.LSE_AND_MERGE,
        "The output is repaired and the LSE is not.",
        "SGLang PR #22688",
        backend=MLA,
    ),
    native_defect(
        "fixup_leaves_out",
        Layer.FIXUP,
        BugClass.LSE_AND_MERGE,
        "The LSE is repaired and the output is not, so that a merge multiplies what it held by zero.",
        "SGLang PR #22688",
        backend=MLA,
    ),
)
"""Of the native kernels."""
