"""What stands for FlashInfer's wrapper classes, and for SGLang's that plan them."""

from attnfuzz.kernels.backend import Unsupported


class Inert:
    """Planned as its class would be, and never run: the TRT-LLM backends override what runs it."""

    def __init__(self, *arguments: object, **options: object) -> None:
        """Take what the class takes."""

    def plan(self, *arguments: object, **options: object) -> None:
        """Plan nothing."""

    # SGLang calls a wrapper's plan by its old name (0.5.9 flashinfer_mla_backend.py:125), and its planners by update.
    begin_forward = plan
    update = plan

    def run(self, *arguments: object, **options: object) -> None:
        """Raise Unsupported: only the TRT-LLM kernels are to be tested here."""
        raise Unsupported("the batch is handed to a wrapper class of FlashInfer's, by the backend's parent")

    forward = run
    forward_return_lse = run
    run_return_lse = run
