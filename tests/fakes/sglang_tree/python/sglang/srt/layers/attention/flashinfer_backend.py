"""A parent of the backends, of which nothing is used."""

global_workspace_buffer = None


class FlashInferIndicesUpdaterPrefill:
    """Plans a wrapper of FlashInfer's."""


class FlashInferIndicesUpdaterDecode:
    """Plans a wrapper of FlashInfer's."""
