"""vLLM's own engine on a case: its scheduler and block pool choose the forwards that reach the case's lengths."""
