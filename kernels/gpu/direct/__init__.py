"""Backends that call one entry point of FlashInfer, or of torch, each by itself."""
