"""Bounds on a search, in a module that imports nothing: the command line needs them before torch is imported."""

MOST_SECONDS = 10 * 366 * 86400.0
"""Ten years: a longer campaign is a typing error."""
