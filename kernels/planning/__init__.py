"""A server's planning of a step: lengths, pages, metadata, and the tensors of a model's layer."""
