"""vLLM's own engine on a case: its scheduler and block pool decide the forwards that reach the case's lengths."""
