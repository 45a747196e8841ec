"""FlashInfer's entry points: the meaning of their arguments, the requests of a call, and the duties of its caller."""

from attnfuzz.kernels.entry_points.entry_point import Breach, EntryPoint, Parameter, RequestSpan, Role

__all__ = ["Breach", "EntryPoint", "Parameter", "RequestSpan", "Role"]
