"""The TRT-LLM attention backends, driven like a serving engine does: plan, pad, route, capture and replay."""
