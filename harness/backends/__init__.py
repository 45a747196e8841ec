"""Finding and loading backends by name."""
