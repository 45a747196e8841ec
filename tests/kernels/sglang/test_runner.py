"""What a server would answer a release's backend, for a case."""

from typing import Any

import pytest
import torch
from harness_cases import GEOMETRY, LATENT
from loaded_tree import LoadedTree, served, served_case

from attnfuzz.kernels.releases.answers import ASKED
from attnfuzz.kernels.sglang.graphs import ServedGraphs
from attnfuzz.kernels.sglang.orders import GraphPlanner
from attnfuzz.reference.case import Launch, Mode, Request, Step

_DECODE = Step(mode=Mode.DECODE, requests=(Request(0, 1, 5),), padded_tokens=1, tokens_per_request=1)
_VERIFY = Step(mode=Mode.TARGET_VERIFY, requests=(Request(0, 4, 9),), padded_tokens=4, tokens_per_request=4)

_PLAIN = {
    "model_path": "dummy",
    "device": "cpu",
    "tp_size": 1,
    "dp_size": 1,
    "enable_dp_attention": False,
    "page_size": 4,
}


def test_a_server_of_a_case_without_drafts_does_not_speculate(loaded: LoadedTree) -> None:
    server = served(loaded, served_case(GEOMETRY, _DECODE))
    assert vars(server.args) == {**_PLAIN, "attention_backend": "trtllm_mha"}
    assert server.model_runner.spec_algorithm.is_none()


def test_a_server_drafts_as_many_tokens_as_the_longest_stride_of_a_case(loaded: LoadedTree) -> None:
    server = served(loaded, served_case(LATENT, _DECODE, _VERIFY))
    assert vars(server.args) == {
        **_PLAIN,
        "attention_backend": "trtllm_mla",
        "speculative_algorithm": "EAGLE",
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
        "speculative_num_steps": 3,
    }
    assert server.model_runner.server_args is server.args
    assert not server.model_runner.spec_algorithm.is_none()


def test_no_request_is_longer_than_the_models_context_and_drafts_fit_into_a_row(loaded: LoadedTree) -> None:
    server = served(loaded, served_case(GEOMETRY, _VERIFY, max_len_slack=3))
    assert server.model_runner.model_config.context_len == 12
    assert server.rows.table.shape[1] == 12 + 4 + 4


def test_a_padded_row_of_a_verify_is_no_longer_than_the_models_context(loaded: LoadedTree) -> None:
    capture = Step(mode=Mode.TARGET_VERIFY, requests=(), padded_tokens=8, tokens_per_request=8, launch=Launch.CAPTURE)
    assert served(loaded, served_case(GEOMETRY, _DECODE, capture)).context_len == 9


def test_rows_are_enough_for_the_largest_batch_and_one_more_if_maxima_have_slack(loaded: LoadedTree) -> None:
    padded = Step(mode=Mode.DECODE, requests=(Request(0, 1, 5),), padded_tokens=6, tokens_per_request=1)
    assert served(loaded, served_case(GEOMETRY, padded)).rows.table.shape[0] == 6
    assert served(loaded, served_case(GEOMETRY, padded, max_len_slack=3)).rows.table.shape[0] == 7


def test_a_server_permits_fewer_requests_than_a_batch_that_is_padded_to_its_attention_group(
    loaded: LoadedTree,
) -> None:
    padded = Step(mode=Mode.DECODE, requests=(Request(0, 1, 5),), padded_tokens=4, tokens_per_request=1)
    limits = [served(loaded, served_case(GEOMETRY, padded, seed=seed)).model_runner for seed in range(3)]
    assert [runner.max_running_requests for runner in limits] == [4, 3, 1]


@pytest.mark.parametrize(("slack", "largest"), [(0, 2), (3, 3)])
def test_buffers_of_graphs_have_the_rows_of_the_largest_graph_of_a_server(
    loaded: LoadedTree, slack: int, largest: int
) -> None:
    capture = Step(mode=Mode.DECODE, requests=(), padded_tokens=2, tokens_per_request=1, launch=Launch.CAPTURE)
    server = served(loaded, served_case(GEOMETRY, capture, _DECODE, max_len_slack=slack))
    own = loaded.module("sglang.srt.layers.attention.trtllm_mha_backend")
    backend = own.TRTLLMHAAttnBackend(server.model_runner)
    graphs = ServedGraphs(server, GraphPlanner.ARGUMENTS)
    graphs.capture(backend, 0, lambda *_: torch.zeros(1))
    assert backend.static.page_table.shape[0] == largest
    assert backend.planned.page_table.shape[0] == 2


def test_the_models_heads_are_those_of_all_ranks_of_an_attention_group(loaded: LoadedTree) -> None:
    extend = Step(mode=Mode.EXTEND, requests=(Request(0, 3, 3),), padded_tokens=4)
    server = served(loaded, served_case(GEOMETRY, extend))
    config, group = server.model_runner.model_config, server.ranks.attention
    assert config.num_attention_heads // group == GEOMETRY.q_heads
    assert config.get_max_num_attention_heads() == config.num_attention_heads
    assert config.get_num_kv_heads(group, dcp_size=1) == GEOMETRY.kv_heads


def test_a_release_without_a_forward_context_is_given_none(loaded: LoadedTree) -> None:
    with served(loaded, served_case(GEOMETRY, _DECODE)).forwarding() as entered:
        assert entered is None


def test_a_release_with_a_forward_context_is_given_the_backend_that_runs(loaded: LoadedTree) -> None:
    file = loaded.release.root / "sglang" / "srt" / "model_executor" / "forward_context.py"
    file.write_text(
        "from contextlib import nullcontext\n"
        "class ForwardContext:\n"
        "    def __init__(self, attn_backend):\n"
        "        self.attn_backend = attn_backend\n"
        "forward_context = nullcontext\n"
    )
    server = served(loaded, served_case(GEOMETRY, _DECODE))
    server.model_runner.attn_backend = "the backend"
    with server.forwarding() as context:
        assert context.attn_backend == "the backend"


def test_values_derived_from_the_gpu_are_given_to_releases_that_have_them(loaded: LoadedTree) -> None:
    file = loaded.release.root / "sglang" / "srt" / "model_executor" / "cuda_graph_config.py"
    file.write_text("class CudaGraphConfig:\n    pass\n")
    server = served(loaded, served_case(GEOMETRY, _DECODE))
    assert type(server.args.cuda_graph_config).__name__ == "CudaGraphConfig"


def test_slots_are_named_by_the_releases_own_translator_where_it_has_one(loaded: LoadedTree) -> None:
    file = loaded.release.root / "sglang" / "srt" / "mem_cache" / "kv_index_translator.py"
    file.write_text("class KVIndexTranslator:\n    def __init__(self, **given):\n        self.given = given\n")
    server = served(loaded, served_case(GEOMETRY, _DECODE))
    given = server.model_runner.kv_index_translator.given
    assert given["req_to_token"] is server.rows.table
    assert given["token_to_kv_pool"] is server.model_runner.token_to_kv_pool


def test_stubs_log_the_attributes_read_from_them(loaded: LoadedTree, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(loaded, "listen", heard.append)
    served(loaded, served_case(GEOMETRY, _DECODE))
    assert heard == [ASKED.note]
