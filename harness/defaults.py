"""What is tested unless something else is named."""

DEFAULT_BACKENDS = ("trtllm_mha", "trtllm_mla", "torch_sdpa")
