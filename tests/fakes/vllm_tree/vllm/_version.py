"""The version of the fake tree."""

__version__ = version = "0.32.0"
