"""Bounds on a search. This module imports nothing: the command line needs them before torch is imported."""

MOST_SECONDS = 10 * 366 * 86400.0
"""Ten years. A longer campaign is a typing error."""
