"""FlashInfer's prefill and decode wrappers, which plan on the host and then run: FA2, FA3 and CUDA-core decode."""
