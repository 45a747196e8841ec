"""What is tested unless something else is named."""

DEFAULT_BACKENDS = ("trtllm_mha", "trtllm_mla", "torch_sdpa")

DEFAULT_BACKENDS_ON_GPU = ("trtllm_mha", "trtllm_mla")
"""Where --device cuda is asked for: those of the visible GPU's architecture."""
