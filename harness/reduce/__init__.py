"""Structural reduction: makes a failing case smaller by editing the case itself, without a choice sequence."""

from attnfuzz.harness.reduce.search import reduce

__all__ = ["reduce"]
