"""What FlashInfer's entry points take: which argument means what, what a call asks for, and what its caller owes."""

from attnfuzz.kernels.entry_points.entry_point import Breach, EntryPoint, Parameter, RequestSpan, Role

__all__ = ["Breach", "EntryPoint", "Parameter", "RequestSpan", "Role"]
