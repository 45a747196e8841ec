"""What a build leaves of the version."""

__version__ = "0.5.9"
