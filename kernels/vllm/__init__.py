"""Releases of vLLM as backends: the model runner, the planner and the layer of its FlashInfer backend."""
