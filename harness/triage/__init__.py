"""Triage: whose fault a failing case is, told by what happens when it is run in other ways."""

from attnfuzz.harness.triage.result import Fault, Outcome, Repetition, Triage, Variant
from attnfuzz.harness.triage.run import triage

__all__ = ["Fault", "Outcome", "Repetition", "Triage", "Variant", "triage"]
