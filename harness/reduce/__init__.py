"""Structural reduction: shrinking a failing case by editing the case itself, without a choice sequence."""

from attnfuzz.harness.reduce.same_cause import SameCause
from attnfuzz.harness.reduce.search import identity, reduce, reduce_calls

__all__ = ["SameCause", "identity", "reduce", "reduce_calls"]
