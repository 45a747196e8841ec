"""Measures the judge: how soon the search that looks for bugs finds the planted ones, and what of the judge does."""
