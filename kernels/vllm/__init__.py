"""Releases of vLLM as backends: the planner and the layer of its FlashInfer backend, without an engine."""
