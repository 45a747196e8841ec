"""FlashInfer's entry points: the meaning of their arguments, and the duties of a caller."""
