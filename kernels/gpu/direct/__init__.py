"""Backends for single entry points of FlashInfer, or of torch."""
