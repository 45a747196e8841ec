"""Finding out the API of a server, its sizes, and which requests it accepts."""

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from attnfuzz.harness.serve.client import Client, HttpAnswer, NoAnswer, ServerError
from attnfuzz.harness.serve.dialects import OpenAiApi, ServedApi, SglangApi
from attnfuzz.harness.serve.metrics import labels_of
from attnfuzz.harness.serve.reply import BadReply, Reply
from attnfuzz.harness.serve.surface import Ability, Speaks, Surface
from attnfuzz.harness.serve.trace import MOST_RANKS, Prompt, ServedRequest
from attnfuzz.harness.serve.trtllm import OWNER, TensorRtApi, with_iterations

_PROBE = ServedRequest(prompt=Prompt(stream=0, shared=3), tokens=2)

_PROBES: tuple[tuple[Ability, Mapping[str, Any]], ...] = (
    (Ability.SEVERAL, {"n": 2}),
    (Ability.PRIORITY, {"priority": 1}),
    (Ability.BIAS, {"allowed": 1}),
    (Ability.GRAMMAR, {"grammar": True}),
    (Ability.SCORED, {"scored": True}),
)

LONGEST_UNKNOWN = 2048
"""Tokens of a request on a server that does not say its limit."""

SECONDS = 120.0
"""Time for one probe: the first of a kind after a start may compile something."""


def discover(client: Client) -> Surface:
    """Ask the server for its API, its sizes and its abilities. Raises ServerError if it is not an LLM server."""
    try:
        return _discover(client)
    except NoAnswer as error:
        raise ServerError(f"no server answers at {client.address} ({error}): start it, or check the address") from None


def _discover(client: Client) -> Surface:
    info = _json(client, "/server_info?config_format=json") or _json(client, "/get_server_info")
    models = _json(client, "/v1/models")
    surface = _sglang(info) if _is_sglang(info) else _openai(client, info, models)
    if surface is None:
        raise ServerError(
            f"{client.address} is not an LLM server that attnfuzz knows: neither /v1/models nor SGLang's "
            "/server_info answers. Give the address without a path"
        )
    # Servers list their arguments, an API key among them.
    covered = replace(
        surface, engine=client.without_token(surface.engine), command=client.without_token(surface.command)
    )
    metrics = client.ask("GET", APIS[surface.speaks].metrics, timeout=SECONDS)
    known = with_metrics(covered, metrics.body.decode(errors="replace")) if metrics.ok else covered
    probed = _probed(client, known)
    if probed.speaks is not Speaks.TENSORRT:
        return probed
    # Its sizes are in the statistics of iterations, of which there are some now.
    iterations = client.ask("GET", "/metrics", timeout=SECONDS)
    return with_iterations(probed, iterations.json if iterations.ok else None)


def _json(client: Client, path: str) -> dict[str, Any]:
    answer = client.ask("GET", path, timeout=SECONDS)
    found = answer.json if answer.ok else None
    return found if isinstance(found, dict) else {}


def _is_sglang(info: Mapping[str, Any]) -> bool:
    # http_server.py, server_info: server arguments, scheduler_info, internal_states and version.
    return "internal_states" in info and "version" in info


def _sglang(info: Mapping[str, Any]) -> Surface:
    graphs = info.get("cuda_graph_bs")
    return Surface(
        speaks=Speaks.SGLANG,
        model=str(info.get("served_model_name") or info.get("model_path") or ""),
        engine=f"sglang {info['version']}",
        page=_whole(info.get("page_size")),
        chunk=_whole(info.get("chunked_prefill_size")),
        rows=_whole(info.get("max_running_requests")),
        graphs=_ascending(graphs if isinstance(graphs, list) else [info.get("cuda_graph_max_bs")]),
        longest=_whole(info.get("max_req_input_len") or info.get("context_length")) or LONGEST_UNKNOWN,
        pool=_whole(info.get("max_total_num_tokens")),
        ranks=_ranks(info.get("dp_size")),
        exact=info.get("enable_deterministic_inference") is True,
        # http_server.py has the route without a condition.
        can=(Ability.ABORT,),
    )


def _openai(client: Client, info: Mapping[str, Any], models: Mapping[str, Any]) -> Surface | None:
    listed = models.get("data")
    if not isinstance(listed, list) or not listed or not isinstance(listed[0], dict) or "id" not in listed[0]:
        return None
    config = info.get("vllm_config")
    config = config if isinstance(config, dict) else {}
    cache, scheduler = (_part(config, f"{name}_config") for name in ("cache", "scheduler"))
    page, blocks = (_whole(cache.get(name)) for name in ("block_size", "num_gpu_blocks"))
    version = _json(client, "/version").get("version")
    return Surface(
        speaks=Speaks.TENSORRT if listed[0].get("owned_by") == OWNER else Speaks.OPENAI,
        model=str(listed[0]["id"]),
        engine=f"{listed[0].get('owned_by') or 'OpenAI API'} {version or ''}".strip(),
        page=page,
        chunk=_whole(scheduler.get("max_num_batched_tokens")),
        rows=_whole(scheduler.get("max_num_seqs")),
        graphs=_ascending(_part(config, "compilation_config").get("cudagraph_capture_sizes") or ()),
        longest=_whole(listed[0].get("max_model_len")) or LONGEST_UNKNOWN,
        pool=page * blocks,
        ranks=_ranks(_part(config, "parallel_config").get("data_parallel_size")),
        exact=_part(info, "vllm_env").get("VLLM_BATCH_INVARIANT") in {True, "1"},
        command=_command(info),
    )


def _command(info: Mapping[str, Any]) -> str:
    given = info.get("args") or info.get("launch_command")
    return shlex.join(map(str, given)) if isinstance(given, list) else str(given or "")


def _part(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = record.get(name)
    return part if isinstance(part, dict) else {}


def _whole(value: object) -> int:
    """Parse a foreign number as a size; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 40 else 0


def _ranks(value: object) -> int:
    return min(max(_whole(value), 1), MOST_RANKS)


def _ascending(sizes: Iterable[object]) -> tuple[int, ...]:
    return tuple(sorted({size for size in map(_whole, sizes) if size}))


def with_metrics(surface: Surface, text: str) -> Surface:
    """Add the sizes that the metrics of a server state to the surface."""
    if re.search(r"^(vllm:|sglang:|trtllm_)", text, re.MULTILINE) is None:
        return surface
    labels = labels_of(text, "vllm:cache_config_info")
    page, blocks = (int(labels.get(name, "")) if labels.get(name, "").isdigit() else 0 for name in _OF_CACHE)
    engines = len(set(re.findall(r'^vllm:[^{]*\{[^}]*engine="(\d+)"', text, re.MULTILINE)))
    known = replace(surface, can=(*surface.can, Ability.METRICS), ranks=max(surface.ranks, min(engines, MOST_RANKS)))
    return known if surface.page or not page else replace(known, page=page, pool=page * blocks)


_OF_CACHE = ("block_size", "num_gpu_blocks")


def _probed(client: Client, surface: Surface) -> Surface:
    """Send a tiny request of each kind, and note which are answered."""
    api = APIS[surface.speaks]
    plain = _asked(client, surface, _PROBE)
    try:
        reply = api.reply(plain.json, _PROBE)
    except BadReply as error:
        raise ServerError(
            f"{client.address}{api.generate} does not answer with log-probabilities ({error}): {plain.words}"
        ) from None
    able: list[Ability] = list(surface.can)
    if surface.speaks is not Speaks.SGLANG:
        with_ids = replace(surface, can=(*able, Ability.TOKEN_IDS))
        answer = _asked(client, with_ids, _PROBE)
        if answer.ok and _has_ids(api.reply, answer):
            surface, able = with_ids, [*able, Ability.TOKEN_IDS]
    elif reply.completions:
        able.append(Ability.TOKEN_IDS)
    for ability, changes in _PROBES:
        request = replace(_PROBE, **changes)
        answer = _asked(client, surface, request)
        if answer.ok and _honoured(api.reply, answer, request):
            able.append(ability)
    return replace(surface, can=tuple(able))


def _has_ids(read: Any, answer: HttpAnswer) -> bool:
    try:
        reply: Reply = read(answer.json, _PROBE)
    except BadReply:
        return False
    return all(isinstance(token, int) for each in reply.completions for token in each.tokens)


def _honoured(read: Any, answer: HttpAnswer, request: ServedRequest) -> bool:
    """Return whether an answer shows that the server heeded the request: it may ignore fields."""
    try:
        reply = read(answer.json, request)
    except BadReply:
        return False
    if len(reply.completions) != request.n:
        return False
    return not request.allowed or all(
        token in request.allowed_tokens or isinstance(token, str)
        for completion in reply.completions
        for token in completion.tokens
    )


def warm_up(client: Client, surface: Surface) -> None:
    """Send the tiny requests again to a server that was started again, as slow as they may be. Raises NoAnswer."""
    for changes in ({}, *(changes for ability, changes in _PROBES if ability in surface.can)):
        _asked(client, surface, replace(_PROBE, **changes))


def _asked(client: Client, surface: Surface, request: ServedRequest) -> HttpAnswer:
    api = APIS[surface.speaks]
    return client.ask("POST", api.generate, api.body(request, surface, "attnfuzz-probe"), timeout=SECONDS)


APIS: Mapping[Speaks, ServedApi] = {
    Speaks.SGLANG: SglangApi(),
    Speaks.OPENAI: OpenAiApi(),
    Speaks.TENSORRT: TensorRtApi(),
}
