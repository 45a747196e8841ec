"""The groups of ranks."""

_PP: object = None
_TP: object = None
_DP: object = None
