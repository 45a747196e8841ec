"""How a request is sampled."""

from dataclasses import dataclass


@dataclass
class SamplingParams:
    """How a request is sampled."""

    temperature: float
