"""The TRT-LLM attention backends, driven as a serving engine does: plan, pad, route, capture and replay."""
