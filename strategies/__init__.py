"""Hypothesis strategies that draw whole cases."""
