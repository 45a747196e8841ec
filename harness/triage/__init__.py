"""Triage: conclude whose fault a failing case is, from running it in other ways."""

from attnfuzz.harness.triage.result import Blame, Repetition, Triage, Variant, VariantOutcome
from attnfuzz.harness.triage.run import triage

__all__ = ["Blame", "Repetition", "Triage", "Variant", "VariantOutcome", "triage"]
