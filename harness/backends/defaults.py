"""What is tested unless something else is named."""

from importlib.metadata import entry_points

DEFAULT_BACKENDS = ("trtllm_mha", "trtllm_mla", "torch_sdpa")

DEFAULT_BACKENDS_ON_GPU = ("trtllm_mha", "trtllm_mla")
"""Where --device cuda is asked for: those of the visible GPU's architecture."""

ENGINES = "attnfuzz.engines"
"""The entry point group in which a package offers an Engine (`kernels.engine`)."""


def engine_names() -> list[str]:
    """Return the name of every engine, and import none: entry points have the names of their engines."""
    return sorted(entry_points(group=ENGINES).names)
