"""Attention of released libraries as backends, each an extra of this package."""
