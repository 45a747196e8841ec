"""Failures, verdicts, and the words for them."""
