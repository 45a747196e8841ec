"""Stands for a TensorRT-LLM server: the tokens and faults of the fake SGLang server behind other routes.

Its behaviour is that of TensorRT-LLM's source, tensorrt_llm/...:
- serve/openai_server.py at e7f7345e: /health, /version, /v1/models, /v1/completions; /metrics has the statistics of
  iterations since it was read last, as JSON; /prometheus/metrics is there with `return_perf_metrics` alone; nothing
  flushes the cache; errors of validation and of generation are 400 with an ErrorResponse.
- serve/openai_protocol.py at 0076e939: unknown fields are errors (extra="forbid"), priorities lie between 0 and 1, and
  `logprobs` of 0 is none.
- serve/postprocess_handlers.py at 01bf1923: ids of tokens where `detokenize` is false, or else their text.
- metrics/collector.py at 050f80de: counters of finished requests; gauges keep the values of the last iteration.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from fake_llm_server import FakeLlm, _Handler

FIELDS = {"model", "prompt", "echo", "logit_bias", "logprobs", "max_tokens", "n", "seed", "stop", "stream"} | {
    "temperature",
    "top_p",
    "ignore_eos",
    "detokenize",
    "response_format",
    "priority",
}
"""Some of CompletionRequest's."""

SIZES = {
    "numActiveRequests": 1,
    "maxNumActiveRequests": 8,
    "maxNumTokensRuntime": 16,
    "kvCacheStats": {"tokensPerBlock": 4, "maxNumBlocks": 2500},
}


@dataclass
class FakeTrtllm(FakeLlm):
    """A server that was started with `return_perf_metrics` and a backend for grammars, or without both."""

    configured: bool = True
    iterations: list[dict[str, Any]] = field(default_factory=list)

    def handler(self) -> type[_Handler]:
        """The routes."""
        return _TrtllmHandler


class _TrtllmHandler(_Handler):
    server_llm: FakeTrtllm

    def _serve(self, body: dict[str, Any] | None) -> None:
        llm = self.server_llm
        path = self.path.partition("?")[0]
        llm.paths.append(path)
        if llm.dead:
            self.close_connection = True
        elif path == "/v1/completions" and body is not None:
            self._complete(body)
        else:
            llm.await_earlier(self.client_address)
            self._reply(*self._answer_to(path))

    def _answer_to(self, path: str) -> tuple[int, Any]:
        llm = self.server_llm
        if path == "/metrics":
            listed, llm.iterations = llm.iterations, []
            return 200, listed
        if path == "/prometheus/metrics" and llm.configured:
            counted = llm.counted
            return 200, (
                f'trtllm_prompt_tokens_total{{model_name="undefined"}} {counted["prompt"]}\n'
                f'trtllm_generation_tokens_total{{model_name="undefined"}} {counted["generated"]}\n'
                'trtllm_num_requests_running{model_name="undefined"} 1\n'
                'trtllm_kv_cache_utilization{model_name="undefined"} 0.5\n'
            )
        fixed: dict[str, Any] = {
            "/health": "",
            "/version": {"version": "1.2.0-fake"},
            "/v1/models": {"object": "list", "data": [{"id": "fake", "object": "model", "owned_by": "tensorrt_llm"}]},
            "/server_info": {"disaggregated_params": None},
        }
        return (200, fixed[path]) if path in fixed else (404, {"detail": "Not Found"})

    def _complete(self, body: dict[str, Any]) -> None:
        llm = self.server_llm
        if (wrong := self._wrong(body)) is not None:
            llm.refuse()
            self._reply(400, {"object": "error", "message": wrong, "type": "BadRequestError", "code": 400})
            return
        sampling = {"max_new_tokens": body["max_tokens"], "n": body.get("n", 1)}
        if "logit_bias" in body:
            sampling["logit_bias"] = body["logit_bias"]
        try:
            answered = llm.generate({"input_ids": body["prompt"], "sampling_params": sampling}, self.client_address)
        except ConnectionAbortedError:
            self.close_connection = True
            self.connection.close()
            return
        infos = [each["meta_info"] for each in (answered if isinstance(answered, list) else [answered])]
        if len(infos) > 1:
            llm.counted["generated"] -= sum(each["completion_tokens"] for each in infos)
        llm.iterations.append(SIZES)
        answer = {
            "id": "cmpl-fake",
            "object": "text_completion",
            "model": "fake",
            "choices": [_choice(index, info, body) for index, info in enumerate(infos)],
            "usage": {
                "prompt_tokens": len(body["prompt"]),
                "completion_tokens": sum(each["completion_tokens"] for each in infos),
            },
            "prompt_token_ids": None,
        }
        self._reply(200, b"data: " + json.dumps(answer).encode() + b"\n\n" if body.get("stream") else answer)

    def _wrong(self, body: dict[str, Any]) -> str | None:
        if unknown := body.keys() - FIELDS:
            return f"Extra inputs are not permitted: {', '.join(sorted(unknown))}"
        if not 0 <= body.get("priority", 0.5) <= 1:
            return "priority: Input should be between 0 and 1"
        if body.get("n", 1) > 1 and not body.get("temperature"):
            return "Greedy decoding in the LLM API does not allow multiple returns"
        if "response_format" in body and not self.server_llm.configured:
            return "guided decoding needs a guided_decoding_backend"
        return None


def _choice(index: int, info: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    tokens = [token for _, token, _ in info["output_token_logprobs"]]
    detokenized = body.get("detokenize", True)
    scored = {
        "text_offset": [0] * len(tokens),
        "token_logprobs": [logprob for logprob, _, _ in info["output_token_logprobs"]],
        "tokens": [f"t{token}" for token in tokens],
        "top_logprobs": [],
    }
    return {
        "index": index,
        "text": "".join(scored["tokens"]) if detokenized else "",
        "token_ids": None if detokenized else tokens,
        "logprobs": scored if body.get("logprobs") else None,
        "finish_reason": "length",
    }
