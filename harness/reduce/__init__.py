"""Structural reduction: makes a failing case smaller by editing the case itself, without a choice sequence."""

from attnfuzz.harness.reduce.search import identity, reduce, reduce_calls

__all__ = ["identity", "reduce", "reduce_calls"]
