"""Defects of attention sinks."""

from attnfuzz.kernels.defects.defect import BugClass, Layer
from attnfuzz.kernels.defects.native import native_defect
from attnfuzz.reference.mistake import Mistake

SINK_DEFECTS = (
    native_defect(
        "sink_missing_from_output",
        Layer.SINK,
        BugClass.SINKS,
        "The sink counts in the LSE, but not in the denominator of the output.",
        "imp issue #1345",
        explained_by=(Mistake.SINK,),
    ),
    native_defect(
        "sink_missing_from_lse",
        Layer.SINK,
        BugClass.SINKS,
        "The sink counts in the denominator of the output, but not in the LSE.",
        "FlashInfer PR #5119",
        explained_by=(Mistake.SINK,),
    ),
    native_defect(
        "sink_in_every_split",
        Layer.SINK,
        BugClass.SINKS,
        "Every split of the keys adds the sink, so that it counts several times.",
        "rocm-libraries issue #12227",
        explained_by=(Mistake.SINK,),
    ),
    native_defect(
        "sink_scaled_as_a_logit",
        Layer.SINK,
        BugClass.SINKS,
        "The softmax scale multiplies the sink.",
        "rocm-libraries issue #12227",
        explained_by=(Mistake.SINK_SCALED,),
    ),
    native_defect(
        "sink_of_the_first_head_in_its_group",
        Layer.SINK,
        BugClass.SINKS,
        "All query heads of a group have the sink of the group's first head.",
        "vllm-xpu-kernels PR #556",
        explained_by=(Mistake.SINK_OF_ANOTHER_HEAD,),
    ),
)
"""Of the native kernels."""
