"""The TRT-LLM attention backends as serving engines drive them: plan, pad, route, capture and replay."""
