"""Guarded memory: tensors flush with a guard page, poison around them, and detection of stray writes."""
