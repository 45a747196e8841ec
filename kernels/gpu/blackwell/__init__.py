"""The TRT-LLM backends on Blackwell: FlashInfer's own entry points over TRT-LLM's generated kernels."""
