"""Guarded memory: tensors flush with an unmapped page, poison around them, and detection of stray writes."""
