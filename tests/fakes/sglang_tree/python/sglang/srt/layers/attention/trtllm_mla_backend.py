"""A backend for latents, which only has its name here."""


class TRTLLMMLABackend:
    """Nothing runs it."""
