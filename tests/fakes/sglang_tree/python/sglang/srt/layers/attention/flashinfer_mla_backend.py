"""A parent of the backends, of which nothing is used."""

global_workspace_buffer = None


class FlashInferMLAIndicesUpdaterPrefill:
    """Plans a wrapper of FlashInfer's."""


class FlashInferMLAIndicesUpdaterDecode:
    """Plans a wrapper of FlashInfer's."""
