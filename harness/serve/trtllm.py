"""The completions of TensorRT-LLM's server: OpenAI's API with fields, refusals and metrics of its own.

From its source, tensorrt_llm/serve: openai_server.py at e7f7345e (routes), openai_protocol.py at 0076e939
(CompletionRequest), postprocess_handlers.py at 01bf1923 (answers), ../metrics/collector.py at 050f80de.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from attnfuzz.harness.serve.dialects import GRAMMAR, OpenAiApi
from attnfuzz.harness.serve.surface import Surface
from attnfuzz.harness.serve.trace import ServedRequest

OWNER = "tensorrt_llm"
"""The owner of its models in /v1/models (openai_protocol.py, ModelCard)."""

MOST_URGENT = 8
"""Priorities of requests lie between this and its negative; the server's between 0 and 1."""


class TensorRtApi(OpenAiApi):
    """POST /v1/completions of TensorRT-LLM: a field that it does not know is an error, and so is one of vLLM.

    It has no log-probabilities of prompts, no names of requests or ranks, and nothing that empties its cache.
    """

    flushes = ()
    metrics = "/prometheus/metrics"
    counts_several = False
    no_flush = (
        "TensorRT-LLM has no endpoint for that: a prefix that is always cached is never compared with one that is not"
    )
    no_metrics = "TensorRT-LLM has /prometheus/metrics with return_perf_metrics: true in its configuration"

    def body(self, request: ServedRequest, surface: Surface, name: str) -> dict[str, Any]:
        """Return the body of a request; 0 log-probabilities would be none."""
        body = super().body(request, surface, name) | {"logprobs": 1}
        if request.priority:
            body["priority"] = (request.priority + MOST_URGENT) / (2 * MOST_URGENT)
        if body.pop("structured_outputs", None):
            body["response_format"] = {"type": "regex", "regex": GRAMMAR}
        if body.pop("return_token_ids", None):
            # An answer has the ids of its tokens where it has no text.
            body["detokenize"] = False
        body.pop("prompt_logprobs", None)
        return body

    def headers(self, request: ServedRequest) -> Mapping[str, str]:
        """Return none: the server chooses among its ranks."""
        del request
        return {}


def with_iterations(surface: Surface, listed: Any) -> Surface:
    """Add the sizes of the latest iteration in /metrics, which takes the entries that it returns.

    There are none without `enable_iter_perf_stats: true`.
    """
    latest = listed[-1] if isinstance(listed, list) and listed else None
    if not isinstance(latest, dict):
        return surface
    cache = latest.get("kvCacheStats")
    page, pages = (_size(cache.get(name)) for name in _OF_CACHE) if isinstance(cache, dict) else (0, 0)
    return replace(
        surface,
        page=page,
        pool=page * pages,
        chunk=_size(latest.get("maxNumTokensRuntime")),
        rows=_size(latest.get("maxNumActiveRequests")),
    )


_OF_CACHE = ("tokensPerBlock", "maxNumBlocks")


def _size(value: object) -> int:
    return value if isinstance(value, int) and 0 < value < 1 << 40 else 0
