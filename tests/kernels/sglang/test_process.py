"""What the process of a server has set up before it builds a backend."""

import os
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from packaging.version import Version

from attnfuzz.kernels.sglang import process
from attnfuzz.kernels.sglang.padding import Ranks

_ATTENTION = "sglang.srt.layers.attention."
_MODEL = SimpleNamespace(hidden_size=64, dtype="bfloat16", hf_config=SimpleNamespace())


class _Release:
    """A release that writes down what it is given."""

    def __init__(self, version: str) -> None:
        self.release: Any = SimpleNamespace(version=Version(version))
        self.sent: list[tuple[str, Any]] = []
        self._modules: dict[str, Any] = defaultdict(SimpleNamespace)
        self.module("sglang.srt.server_args").ServerArgs = SimpleNamespace
        self.module("sglang.srt.server_args").set_global_server_args_for_scheduler = self._note("arguments")
        dp_attention = self.module("sglang.srt.layers.dp_attention")
        dp_attention.initialize_dp_attention = self._note("attention")
        dp_attention.init_dp_gathered_buffer = self._note("buffer")
        context = self.module("sglang.srt.runtime_context")
        context.reset_context = self._note("reset")
        context.publish = self._note("published")
        context.SpawnRanks = SimpleNamespace
        parallel = SimpleNamespace(override_permanently=self._note("groups"))
        context.get_parallel = lambda: parallel

    def module(self, name: str) -> Any:
        return self._modules[name]

    def _note(self, what: str) -> Any:
        return lambda *given, **named: self.sent.append((what, (*given, *named.values())))


def _begin(release: _Release, ranks: Ranks, **arguments: Any) -> Any:
    return process.begin(release, ranks, _MODEL, arguments, 1 << 20, torch.device("cpu"))


@pytest.mark.parametrize("version", ["0.5.9", "0.5.14", "0.5.20", "0.5.21", "0.5.22", "0.5.23"])
def test_a_server_has_its_arguments_and_no_model(version: str) -> None:
    given = _begin(_Release(version), Ranks(), page_size=64)
    assert (given.model_path, given.device, given.page_size, given.tp_size) == ("dummy", "cpu", 64, 1)


@pytest.mark.parametrize("version", ["0.5.9", "0.5.20"])
def test_replicas_are_groups_of_processes_in_releases_that_ask_those(version: str) -> None:
    release = _Release(version)
    given = _begin(release, Ranks(attention=2, data_parallel=4))
    assert (given.tp_size, given.dp_size, given.enable_dp_attention) == (8, 4, True)
    state = release.module("sglang.srt.distributed.parallel_state")
    assert (state._TP.world_size, state._TP.rank_in_group) == (8, 0)
    assert (state._ATTN_TP.world_size, state._ATTN_TP.rank_in_group) == (2, 0)
    assert release.sent[-2:] == [("arguments", (given,)), ("attention", (given, _MODEL))]


@pytest.mark.parametrize(
    ("version", "replicas"),
    [("0.5.21", {"dp_size": 4, "enable_dp_attention": True}), ("0.5.22", {"attn_dp_size": 4})],
)
def test_replicas_are_ranks_in_releases_that_publish_those(version: str, replicas: dict[str, Any]) -> None:
    release = _Release(version)
    given = _begin(release, Ranks(attention=2, data_parallel=4))
    assert vars(given) == {"model_path": "dummy", "device": "cpu", "tp_size": 8, **replicas}
    assert [what for what, _ in release.sent] == ["reset", "published", "groups", "attention", "buffer"]
    assert release.sent[1][1] == (given, "scheduler", SimpleNamespace(world_rank=0))


def test_a_server_alone_has_no_replicas_of_attention() -> None:
    assert not _begin(_Release("0.5.9"), Ranks(attention=4)).enable_dp_attention


def test_buffers_of_the_last_server_are_dropped() -> None:
    release = _Release("0.5.9")
    module = release.module(f"{_ATTENTION}trtllm_mha_backend")
    module.global_zero_init_workspace_buffer = "of the last case"
    _begin(release, Ranks())
    assert module.global_zero_init_workspace_buffer is None
    assert not hasattr(release.module(f"{_ATTENTION}trtllm_mla_backend"), "global_cute_dsl_workspace_buffer")


def test_workspaces_have_the_size_that_the_kernels_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_FLASHINFER_WORKSPACE_SIZE", "7")
    release = _Release("0.5.9")
    mla = release.module(f"{_ATTENTION}trtllm_mla_backend")
    mla.DEFAULT_WORKSPACE_SIZE_MB = 150
    process.begin(release, Ranks(), _MODEL, {}, (3 << 20) + 1, torch.device("cpu"))
    assert os.environ["SGLANG_FLASHINFER_WORKSPACE_SIZE"] == str((3 << 20) + 1)
    assert mla.DEFAULT_WORKSPACE_SIZE_MB == 4
