"""Releases of SGLang as backends: their own planners, batches and padding, without a server."""
