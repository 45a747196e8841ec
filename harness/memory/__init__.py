"""Guarded memory: tensors that touch an unmapped page, poison where nothing may be read, and proof of stray writes."""
