"""Edits of cases: those that shrinking tries, and those that remove one feature."""
