"""Failures and the words for them: what a verdict says, and how it reads."""
