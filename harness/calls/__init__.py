"""Cases made of literal calls: running, tracing and reading them."""
