"""Triage: whose fault a failing case is, from what happens when it is run in other ways."""

from attnfuzz.harness.triage.result import Blame, Repetition, Triage, Variant, VariantOutcome
from attnfuzz.harness.triage.run import triage

__all__ = ["Blame", "Repetition", "Triage", "Variant", "VariantOutcome", "triage"]
