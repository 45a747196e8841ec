"""Releases of SGLang as backends: its own planners, batches and padding, without a server."""
