"""Failures, verdicts, and their descriptions in words."""
