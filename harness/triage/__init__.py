"""Triage: conclude whose fault a failing case is, from running it in other ways."""

from attnfuzz.harness.triage.result import Repetition, Triage, Variant, VariantOutcome
from attnfuzz.harness.triage.run import triage
from attnfuzz.harness.verdict.blame import Blame

__all__ = ["Blame", "Repetition", "Triage", "Variant", "VariantOutcome", "triage"]
