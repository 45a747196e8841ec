"""The APIs: SGLang's own, and OpenAI's completions as vLLM and SGLang serve them (TensorRT-LLM's: trtllm.py)."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from attnfuzz.harness.serve.reply import BadReply, Completion, Reply, Token
from attnfuzz.harness.serve.surface import Ability, Surface
from attnfuzz.harness.serve.trace import ServedRequest

BIAS = 100.0
"""A logit bias that leaves only biased tokens: OpenAI's API bounds it by 100."""

GRAMMAR = "[a-z0-9 ]{1,64}"
"""A regular expression that most tokens of most vocabularies satisfy."""

SEED = 1
"""The seed of requests that are sampled."""


class ServedApi(Protocol):
    """How one API asks and answers."""

    @property
    def generate(self) -> str:
        """The path that generates."""
        ...

    @property
    def flushes(self) -> Sequence[str]:
        """Paths that flush the prefix cache."""
        ...

    @property
    def metrics(self) -> str:
        """The path of its metrics in Prometheus' format."""
        ...

    @property
    def counts_several(self) -> bool:
        """Whether its metrics count the tokens of requests with n > 1."""
        ...

    @property
    def no_flush(self) -> str:
        """The remedy where the cache can't be flushed, or the lack of one."""
        ...

    @property
    def no_metrics(self) -> str:
        """The remedy where there are no metrics."""
        ...

    def body(self, request: ServedRequest, surface: Surface, name: str) -> dict[str, Any]:
        """Return the body of a request called `name`."""
        ...

    def headers(self, request: ServedRequest) -> Mapping[str, str]:
        """Return the headers of a request that only its content calls for."""
        ...

    def reply(self, answer: Any, request: ServedRequest) -> Reply:
        """Read an answer. Raises BadReply."""
        ...


class OpenAiApi:
    """POST /v1/completions with prompts of token ids and log-probabilities.

    The fields `return_token_ids`, `prompt_logprobs`, `structured_outputs` and `priority` are vLLM's; each is sent to a
    server only if it answered to it when it was probed.
    """

    generate = "/v1/completions"
    flushes: Sequence[str] = ("/reset_prefix_cache", "/flush_cache")
    metrics = "/metrics"
    counts_several = True
    no_flush = "vLLM has /reset_prefix_cache with VLLM_SERVER_DEV_MODE=1"
    no_metrics = "vLLM has /metrics unless its statistics are switched off"

    def body(self, request: ServedRequest, surface: Surface, name: str) -> dict[str, Any]:
        """Return the body of a request; OpenAI's API has no names for requests."""
        body: dict[str, Any] = {
            "model": surface.model,
            "prompt": list(request.prompt.tokens),
            "max_tokens": request.tokens,
            "temperature": 0,
            "logprobs": 0 if Ability.TOKEN_IDS in surface.can else 1,
            "ignore_eos": True,
        }
        if request.n > 1:
            # vLLM refuses n > 1 for greedy sampling, which has one answer alone.
            body |= {"n": request.n, "temperature": 1, "seed": SEED}
        if request.priority:
            body["priority"] = request.priority
        if request.allowed:
            body["logit_bias"] = {str(each): BIAS for each in request.allowed_tokens}
        if request.grammar:
            body["structured_outputs"] = {"regex": GRAMMAR}
        if request.scored:
            body["prompt_logprobs"] = 0
        if Ability.TOKEN_IDS in surface.can:
            body["return_token_ids"] = True
        return body

    def headers(self, request: ServedRequest) -> Mapping[str, str]:
        """Return the rank (vLLM's entrypoints/generate/base/serving.py, _get_data_parallel_rank)."""
        return {} if request.rank is None else {"X-data-parallel-rank": str(request.rank)}

    def reply(self, answer: Any, request: ServedRequest) -> Reply:
        """Read an answer."""
        choices = _field(answer, "choices", list)
        usage = answer.get("usage") or {}
        first = choices[0] if choices else {}
        prompt = first.get("prompt_token_ids")
        return Reply(
            completions=tuple(_openai_completion(each) for each in choices),
            scores=_openai_scores(first.get("prompt_logprobs"), request) if request.scored else (),
            prompt_tokens=usage.get("prompt_tokens"),
            generated=usage.get("completion_tokens"),
            prompt=None if prompt is None else tuple(prompt),
        )


def _openai_completion(choice: Any) -> Completion:
    scored = _field(choice, "logprobs", dict)
    tokens = choice.get("token_ids")
    texts: list[Token] = _field(scored, "tokens", list)
    return Completion(
        tokens=tuple(texts if tokens is None else tokens),
        logprobs=_numbers(_field(scored, "token_logprobs", list)),
    )


def _openai_scores(listed: Any, request: ServedRequest) -> tuple[float, ...]:
    if not isinstance(listed, list) or len(listed) != request.prompt.length:
        raise BadReply("it has no log-probability of each token of the prompt")
    pairs = list(zip(listed, request.prompt.tokens, strict=True))[1:]
    try:
        return tuple(float(each[str(token)]["logprob"]) for each, token in pairs)
    except (KeyError, TypeError, ValueError):
        raise BadReply("a log-probability of the prompt is not that of its token") from None


class SglangApi:
    """POST /generate with `input_ids` and `return_logprob` (SGLang's http_server.py and io_struct.py)."""

    generate = "/generate"
    flushes = ("/flush_cache",)
    metrics = "/metrics"
    counts_several = True
    no_flush = "SGLang has /flush_cache"
    no_metrics = "SGLang has /metrics with --enable-metrics"

    def body(self, request: ServedRequest, surface: Surface, name: str) -> dict[str, Any]:
        """Return the body of a request; `rid` is its name."""
        sampling: dict[str, Any] = {"max_new_tokens": request.tokens, "temperature": 0, "ignore_eos": True}
        if request.n > 1:
            sampling["n"] = request.n
        if request.allowed:
            sampling["logit_bias"] = {str(each): BIAS for each in request.allowed_tokens}
        if request.grammar:
            sampling["regex"] = GRAMMAR
        body: dict[str, Any] = {
            "input_ids": list(request.prompt.tokens),
            "sampling_params": sampling,
            "return_logprob": True,
            "logprob_start_len": 0 if request.scored else -1,
        }
        if request.n == 1:
            body["rid"] = name
        if request.priority:
            body["priority"] = request.priority
        if request.rank is not None:
            # From 0.5.10 on.
            body["routed_dp_rank"] = request.rank
        return body

    def headers(self, request: ServedRequest) -> Mapping[str, str]:
        """Return none: the body has everything."""
        del request
        return {}

    def reply(self, answer: Any, request: ServedRequest) -> Reply:
        """Read an answer: one object, or a list of `n`."""
        several = answer if isinstance(answer, list) else [answer]
        infos = [_field(each, "meta_info", dict) for each in several]
        if not infos:
            raise BadReply("it has no completion")
        first = infos[0]
        # The first of a prompt has no log-probability.
        scores = _field(first, "input_token_logprobs", list)[1:] if request.scored else ()
        return Reply(
            completions=tuple(map(_sglang_completion, infos)),
            scores=_numbers(each[0] for each in scores),
            prompt_tokens=first.get("prompt_tokens"),
            generated=sum(info.get("completion_tokens") or 0 for info in infos),
            name=str(first.get("id")) if request.n == 1 else None,
        )


def _sglang_completion(info: Mapping[str, Any]) -> Completion:
    listed = _field(info, "output_token_logprobs", list)
    return Completion(
        tokens=tuple(each[1] for each in listed),
        logprobs=_numbers(each[0] for each in listed),
    )


def _numbers(values: Any) -> tuple[float, ...]:
    try:
        return tuple(float(each) for each in values)
    except (TypeError, ValueError):
        raise BadReply("a log-probability is not a number") from None


def _field(record: Any, name: str, kind: type) -> Any:
    """Read a field of a foreign record. Raises BadReply if it is missing or of another kind."""
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, kind):
        raise BadReply(f"it has no {name}")
    return value
