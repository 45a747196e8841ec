"""A server's counters, from its metrics in Prometheus' text format."""

import math
import re
from collections import defaultdict
from dataclasses import dataclass

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+(\S+)")

_NAMES = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "usage": ("vllm:kv_cache_usage_perc", "sglang:token_usage"),
    "prompt": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "trtllm_prompt_tokens_total"),
    "generated": ("vllm:generation_tokens_total", "sglang:generation_tokens_total", "trtllm_generation_tokens_total"),
    "hits": ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total", "trtllm_prompt_cached_tokens_total"),
    "preempted": ("vllm:num_preemptions_total", "sglang:num_retracted_reqs"),
    "began": ("process_start_time_seconds",),
}

# TensorRT-LLM's gauges of requests and pages are those of the last iteration: they stay as they were on an idle server.

GAUGES = tuple(name for field in ("running", "waiting", "usage") for name in _NAMES[field])
"""Samples that are 0 on a server that is idle and was flushed."""


@dataclass(frozen=True)
class ServerCounters:
    """Sums over engines and labels, None where the server has none. `began` changes when it restarts."""

    running: float | None = None
    waiting: float | None = None
    usage: float | None = None
    prompt: float | None = None
    generated: float | None = None
    hits: float | None = None
    preempted: float | None = None
    began: float | None = None

    @property
    def idle(self) -> bool:
        """Whether no request is running or waiting, as far as it is counted."""
        return not self.running and not self.waiting


def read_counters(text: str) -> ServerCounters:
    """Sum up the counters in a page of metrics."""
    sums: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        if line.startswith("#") or (match := _SAMPLE.match(line)) is None:
            continue
        try:
            value = float(match[2])
        except ValueError:
            continue
        if math.isfinite(value):
            sums[match[1]] += value
    found = {field: next((sums[name] for name in names if name in sums), None) for field, names in _NAMES.items()}
    return ServerCounters(**found)


def labels_of(text: str, name: str) -> dict[str, str]:
    """Return the labels of the first sample called `name`."""
    match = re.search(rf"^{re.escape(name)}\{{([^}}]*)\}}", text, re.MULTILINE)
    return {} if match is None else dict(re.findall(r'(\w+)="([^"]*)"', match[1]))
