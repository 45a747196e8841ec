"""FlashInfer's functions for one request."""
