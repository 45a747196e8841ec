"""The meaning of a function's arguments: roles of tensors, requests, and the duties of a caller.

Guests know functions (`known.py`); FlashInfer's are in `kernels/entry_points/`.
"""

from attnfuzz.kernels.meaning.entry_point import Breach, EntryPoint, Parameter, RequestSpan, Role

__all__ = ["Breach", "EntryPoint", "Parameter", "RequestSpan", "Role"]
